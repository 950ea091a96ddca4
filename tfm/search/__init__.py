"""Greedy search, beam search and sampling of output sequences.

The searches do not depend on a model class. The model is a function
`step(tokens, state, position) -> (logits, state)`:

    tokens    int32 [B, W], the last token of each live hypothesis. At position 0, this is `bos_id`.
    state     A pytree whose leaves all begin with the axis B. It may be empty. The default `reorder` of beam
              search accepts only leaves [B, W, ...]. A leaf without the axis W, such as [B, M], needs another
              `reorder`, because with M = W it would look like one number for each hypothesis. If a node of
              the state has an attribute `max_length`, it is the number of positions for which the node has
              space, and a search for longer outputs raises a ValueError.
    position  int32 scalar, counted from 0.
    logits    [B, W, V] of any float dtype. -inf makes a token impossible.

Every hypothesis satisfies the `Limits` and ends in `eos_id`, because EOS is the only choice at the last
position that the limits allow. (With `Limits.force_eos` False, an output may also end without EOS.) Outputs
are padded with 0. Scores are log-probabilities under the model. Constraints exclude tokens, but they do not
change the probabilities of the other tokens.

Shape letters: B batch, W live hypotheses of a batch row (the beam), N hypotheses returned, T `max_length`,
L target length, M source length, P prefix length, V vocabulary.
"""

from tfm.losses import token_scores
from tfm.search.beam import BeamTrace, beam_search, coverage_penalty, trace_beam_search
from tfm.search.greedy import greedy_search, sample
from tfm.search.limits import Constraints, Limits
from tfm.search.loops import Loop, run_in_stages, run_together
from tfm.search.state import Hypotheses, Step, ensemble, gather_beams, length_penalty

__all__ = [
    "BeamTrace",
    "Constraints",
    "Hypotheses",
    "Limits",
    "Loop",
    "Step",
    "beam_search",
    "coverage_penalty",
    "ensemble",
    "gather_beams",
    "greedy_search",
    "length_penalty",
    "run_in_stages",
    "run_together",
    "sample",
    "token_scores",
    "trace_beam_search",
]
