"""Search for output sequences: greedy search, beam search and sampling, over an opaque step function.

The model is a function `step(tokens, state, position) -> (logits, state)`:

    tokens    int32 [B, W], the last token of each live hypothesis; `bos_id` at position 0
    state     a pytree, perhaps empty, whose leaves all begin with the axis B. The default `reorder` of beam
              search accepts leaves [B, W, ...] only. A leaf of the batch row, such as [B, M], needs another
              `reorder`, because with M = W it would look like one number for each hypothesis. If a node of
              the state has an attribute `max_length`, the number of positions that it has space for, then a
              search for longer outputs raises ValueError
    position  int32 scalar, counted from 0
    logits    [B, W, V], any float dtype; -inf makes a token impossible

Every hypothesis ends in `eos_id` and satisfies the `Limits`. At the last position that they allow, EOS is the
only choice, so every hypothesis that a search returns is finished. Outputs are padded with 0. Scores are
log-probabilities under the model. Constraints do not change the probability of a token.

Shape letters: B batch, W live hypotheses of a batch row (the beam), N hypotheses returned, T `max_length`,
L target length, M source length, P prefix length, V vocabulary.
"""

from tfm.search.beam import BeamTrace, beam_search, coverage_penalty, trace_beam_search
from tfm.search.greedy import greedy_search
from tfm.search.hypotheses import Hypotheses
from tfm.search.limits import Constraints, Limits
from tfm.search.sampling import sample
from tfm.search.scores import ensemble, length_penalty, token_scores
from tfm.search.state import Step, gather_beams

__all__ = [
    "BeamTrace",
    "Constraints",
    "Hypotheses",
    "Limits",
    "Step",
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
