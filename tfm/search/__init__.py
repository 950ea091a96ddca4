"""Search for output sequences: greedy, beam and sampling, over an opaque decoding state.

The model is a function `step(tokens, state, position) -> (logits, state)`:

    tokens    int32 [B, W], the last token of each live hypothesis; `bos_id` at position 0
    state     a pytree of one leaf or more, all of which begin with the axis B; what the model carries along.
              The default `reorder` of beam search takes leaves [B, W, ...] only. A leaf of the batch row,
              [B, M] for instance, needs a `reorder` of its own: with M = W it would be taken for a number of
              each hypothesis. A node of the state may have an attribute `max_length`, the number of positions
              that it has space for: a search over more raises ValueError
    position  int32 scalar, counted from 0
    logits    [B, W, V], any float dtype; -inf rules a token out

The hypotheses are the sequences that end in `eos_id` and that `Constraints` allow. At the last position that
a limit allows, EOS is the only choice, so every hypothesis returned is a finished one. Outputs are padded
with 0. Scores are the model's own log-probabilities: a token that a constraint rules out keeps its
probability.

Shape letters: B batch, W live hypotheses of a batch row (the beam), N hypotheses returned, T `max_length`,
L target length, M source length, P prefix length, V vocabulary.
"""

from tfm.search.beam import BeamTrace, beam_search, coverage_penalty, trace_beam_search
from tfm.search.constraints import Constraints
from tfm.search.greedy import greedy_search
from tfm.search.hypotheses import Hypotheses
from tfm.search.sampling import sample
from tfm.search.scores import ensemble, length_penalty, token_scores
from tfm.search.state import gather_beams

__all__ = [
    "BeamTrace",
    "Constraints",
    "Hypotheses",
    "beam_search",
    "coverage_penalty",
    "ensemble",
    "gather_beams",
    "greedy_search",
    "length_penalty",
    "sample",
    "token_scores",
    "trace_beam_search",
]
