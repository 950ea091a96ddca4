"""Log-probabilities: of chosen tokens, of given sequences, of several models together; and their penalty."""

import jax
import jax.numpy as jnp


def normaliser(logits):
    """log sum exp over the vocabulary: [..., V] -> float32 [...]."""
    return jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1)


def log_probability(chosen, normaliser):
    """Chosen logits less the normaliser, float32; -inf stays so, even where all logits are -inf."""
    chosen = chosen.astype(jnp.float32)
    return jnp.where(chosen == -jnp.inf, -jnp.inf, chosen - normaliser)


def length_penalty(length, alpha):
    """((5 + length) / 6) ** alpha: Wu et al. 2016, equation 14, as section 6.1 uses it with alpha 0.6."""
    return ((5.0 + length) / 6.0) ** alpha


def token_scores(logits, targets):
    """Log-probability of given tokens: logits [..., L, V], targets int [..., L] -> float32 [..., L]."""
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return log_probability(chosen, normaliser(logits))


def score(logits, targets, weights):
    """Log-probability of given sequences.

    Args:
      logits: [..., L, V], of a forward pass over the whole targets.
      targets: int [..., L].
      weights: [..., L]; 0 where the target is padding, which then costs nothing, whatever its logit.

    Returns:
      (sums float32 [...], weighted log-probabilities float32 [..., L]).
    """
    tokens = jnp.where(weights == 0, 0.0, token_scores(logits, targets) * weights)
    return tokens.sum(-1), tokens


def ensemble(*steps):
    """One step of several models: the mean of their probabilities.

    Args:
      steps: each a `step(tokens, state, position)` over the same vocabulary.

    Returns:
      step(tokens, states, position) -> (log of the mean probability, states); states is the tuple of theirs.
    """

    def step(tokens, states, position):
        each = [one(tokens, state, position) for one, state in zip(steps, states, strict=True)]
        states = tuple(state for _, state in each)
        if len(each) == 1:
            return each[0][0], states
        logs = [log_probability(logits, normaliser(logits)[..., None]) for logits, _ in each]
        return jax.nn.logsumexp(jnp.stack(logs), axis=0) - jnp.log(len(each)), states

    return step
