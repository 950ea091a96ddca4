"""Texts continued by a language model: sampled, or searched by greedy or beam search, batch by batch.

A prefix is read once, in one pass, and all its samples or hypotheses share what is cached of it.
"""

import dataclasses
import functools
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tfm import memory_estimate, search
from tfm.arguments import check_texts
from tfm.data.batches.rows import bucket_width
from tfm.data.batching import decode_rows, pad_sentences
from tfm.data.tokenizer import BOS_ID, EOS_ID, PAD_ID
from tfm.decoding.batch_splitting import run_batches
from tfm.decoding.generate import (
    MAX_TOKENS,
    DecodingConfig,
    Members,
    TokenHypothesis,
    as_members,
    collect,
    option,
    run_search,
)
from tfm.decoding.parameters import Params, apply_model, search_parameters, weight_bytes, with_dtype
from tfm.errors import UserError
from tfm.fields import check_fields, field_like

same_field = functools.partial(field_like, DecodingConfig)
log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class GenerationConfig:
    """How texts are continued: by default one sample of each, of the model's own probabilities."""

    samples: int = option(
        1, "Samples of each text; 0 searches for the most probable one.", least=0, most=1000, unit="samples"
    )
    max_tokens: int = option(
        256,
        "Maximum tokens of a continuation. With learned positions, a text keeps only its last tokens where "
        "both together are more than there are positions.",
        least=1,
        most=MAX_TOKENS,
        unit="tokens",
    )
    temperature: float = option(
        1.0,
        "Divides the logits of samples: below 1 the probable becomes more so. For 0, the most probable "
        "token, set samples=0.",
        least=0.001,
        most=1000,
    )
    top_k: int = same_field("top_k")
    top_p: float = same_field("top_p")
    seed: int = same_field("seed")
    beam_size: int = same_field("beam_size", 1)
    length_penalty: float = same_field("length_penalty", 0.0)
    batch_size: int = option(16, "Texts continued at a time.", least=1, most=65_536, unit="texts")
    dtype: str = same_field("dtype")

    def __post_init__(self):
        check_fields(self, "decoding")

    @property
    def width(self) -> int:
        """Hypotheses of a text at a time."""
        return self.samples or self.beam_size


class Continuation(NamedTuple):
    """What follows a prefix.

    Its score is the log-probability of its tokens and its end, also where that is the limit of tokens; of a
    beam it is divided by the length penalty.
    """

    text: str
    score: float


def continue_texts(
    model: nn.Module,
    params: Params | Members,
    tokenizer: Any,
    prefixes: Sequence[str],
    config: GenerationConfig,
    *,
    first: int = 0,
) -> list[list[Continuation]]:
    """Continuations of texts.

    Args:
      model, params, config, first: as in `continue_tokens`.
      tokenizer: of the model.
      prefixes: texts, perhaps empty.

    Returns:
      `config.samples` continuations of each text in no order, or those of a beam, the best first.

    Raises:
      UserError: as `continue_tokens`.
    """
    prefixes = check_texts("prefixes", prefixes)
    encoded = tokenizer.encode(prefixes)
    found = continue_tokens(model, params, encoded, config, first=first)
    return [
        [Continuation(_text_behind(tokenizer, prefix, ids, one.ids), one.score) for one in each]
        for prefix, ids, each in zip(prefixes, encoded, found, strict=True)
    ]


def _text_behind(tokenizer, prefix, prefix_ids, ids):
    """The text of `ids`; decoded behind the prefix, for a tokenizer may drop the first blank of a text."""
    whole = tokenizer.decode([*prefix_ids, *ids])
    return whole.removeprefix(prefix) if whole.startswith(prefix) else tokenizer.decode(ids)


def continue_tokens(
    model: nn.Module,
    params: Params | Members,
    prefixes: Sequence[Sequence[int]],
    config: GenerationConfig,
    *,
    first: int = 0,
) -> list[list[TokenHypothesis]]:
    """Continuations of lists of ids, in their order.

    Args:
      model: a `tfm.decoding.protocol.LanguageModel`.
      params: its parameters; a tuple of several decodes with the mean of their probabilities.
      prefixes: lists of ids without special ids; empty lists begin a text.
      config: a `GenerationConfig`.
      first: number of the first prefix. Samples depend on the seed, the number of their prefix and their own
        number, not on the prefixes beside it.

    Returns:
      A list of `TokenHypothesis` for each prefix: of what follows it, with EOS.

    Raises:
      UserError: the model has too few positions for `config.max_tokens`, or probabilities are NaN.
    """
    prompts = [_prompt(ids, model, config) for ids in prefixes]
    members = tuple(search_parameters(each, config.dtype) for each in as_members(params))
    numbers = first + np.arange(len(prompts))
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(config.seed), numbers)
    held = weight_bytes(params, members)
    results: list[Any] = [None] * len(prompts)

    def search_rows(rows):
        context = pad_sentences([prompts[i][:-1] for i in rows], fill=PAD_ID)
        context = context[:, : _max_context(model, config)]  # the columns beyond are padding
        last = np.array([prompts[i][-1] for i in rows], np.int32)
        return continue_batch(model, members, context, last, config, keys[np.array(rows)])

    def estimate(rows):
        known = memory_estimate.estimate_of(model)
        if known is None:
            return None
        source = bucket_width(max(len(prompts[i]) for i in rows))
        sizes = {"source": source, "length": config.max_tokens + 1, "width": config.width}
        sampling = bool(config.samples)
        return held + len(members) * known.decoding_bytes(rows=len(rows), sampling=sampling, **sizes)

    def describe(rows):
        tokens = max(len(prompts[i]) for i in rows)
        return f"Continuing a text of {tokens:,} tokens", "lower decoding.samples or decoding.max_tokens"

    batches = decode_rows(list(map(len, prompts)), config.batch_size)
    for indices, hypotheses in run_batches(batches, search_rows, estimate, describe):
        collect(indices, hypotheses, results)
    return results


def _max_context(model, config):
    """Tokens of a prefix, BOS among them but not the last, that there are positions for; None for all."""
    most = model.config.max_length
    return None if most is None else most - config.max_tokens - 1


def _prompt(ids, model, config):
    """BOS and the ids, or as many of the last ids as there are positions for."""
    prompt, most = [BOS_ID, *ids], _max_context(model, config)
    if most is None or len(prompt) <= most + 1:
        return prompt
    if most < 0:
        raise UserError(
            f"decoding.max_tokens must be below the {model.config.max_length:,} positions of the model, got "
            f"{config.max_tokens:,}: lower it."
        )
    log.warning(
        "A text of %s tokens keeps the last %s, for %s more have to follow (decoding.max_tokens)",
        f"{len(ids):,}",
        f"{most + 1:,}",
        f"{config.max_tokens:,}",
    )
    return prompt[-most - 1 :]


@functools.partial(jax.jit, static_argnums=(0, 4))
def continue_batch(
    model: nn.Module,
    members: Members,
    context: jax.Array,
    last: jax.Array,
    config: GenerationConfig,
    keys: jax.Array,
) -> search.Hypotheses:
    """Continues one batch; compiled once for each shape.

    Args:
      model, config: as in `continue_tokens`.
      members: `search_parameters` of each member of the ensemble.
      context: int32 [B, P], all tokens of the prefixes but the last, padded with 0.
      last: int32 [B], the last tokens.
      keys: [B], random keys for sampling.

    Returns:
      `search.Hypotheses` with N = `config.width`.
    """
    model = with_dtype(model, config.dtype)
    max_length = config.max_tokens + 1  # with EOS
    step = search.ensemble(*(_make_step(model, params) for params in members))
    states = tuple(
        (
            apply_model(
                model, params, context, width=config.width, max_length=max_length, method="init_cache"
            ),
            last,
        )
        for params in members
    )
    constraints = search.Constraints(forbidden=(PAD_ID, BOS_ID))  # never targets of training
    common = {
        "limits": search.Limits(max_length, BOS_ID, EOS_ID, constraints),
        "batch_size": len(last),
    }
    of_beam = {
        "reorder": lambda states, parents: tuple((cache.reorder(parents), last) for cache, last in states)
    }
    return run_search(step, states, config, keys, of_beam, **common)


def _make_step(model, params):
    """The search's step of one model, which begins with the last token of the prefix where that has BOS."""

    def step(tokens, state, position):
        cache, last = state
        tokens = jnp.where(position == 0, last[:, None], tokens)
        logits, cache = apply_model(model, params, tokens, cache, position, method="decode_step")
        return logits, (cache, last)

    return step
