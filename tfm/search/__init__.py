"""Search for output sequences: greedy, beam and sampling, over an opaque decoding state.

The model is a function `step(tokens, state, position) -> (logits, state)`:

    tokens    int32 [B, W], the last token of each live hypothesis; `bos_id` at position 0
    state     a pytree of one leaf or more, all of which begin with the axis B; what the model carries along.
              The default `reorder` of beam search takes leaves [B, W, ...] only. What belongs to a sentence,
              [B, M] for instance, needs another: with M = W it would pass for a number of each hypothesis.
              A node of it may have an attribute `max_length`, the positions it is made for: a search over
              more raises ValueError
    position  int32 scalar, counted from 0
    logits    [B, W, V], any float dtype; -inf rules a token out

The hypotheses are the sequences that end in `eos_id` and that `Constraints` allow. At the last place that a
limit leaves, EOS is the only choice, so every hypothesis returned is a finished one. Outputs are padded with
0. Scores are the model's own log-probabilities: what a constraint rules out keeps its share of probability.

Shape letters: B batch, W live hypotheses of a sentence (the beam), N hypotheses returned, T `max_length`,
L target length, M source length, V vocabulary.
"""

from tfm.search.beam import beam_search, coverage_penalty
from tfm.search.hypotheses import Constraints, Hypotheses, gather_beams
from tfm.search.scores import ensemble, length_penalty, score, token_scores
from tfm.search.single import greedy_search, sample

__all__ = [
    "Constraints",
    "Hypotheses",
    "beam_search",
    "coverage_penalty",
    "ensemble",
    "gather_beams",
    "greedy_search",
    "length_penalty",
    "sample",
    "score",
    "token_scores",
]
