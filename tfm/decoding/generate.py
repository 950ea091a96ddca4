"""Generation by a language model: continuations of texts or ids, by sampling or by a search.

One forward pass reads each prefix. All its samples or hypotheses share the cached keys and values.
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

from tfm import search
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.decoding.batches import find_shapes, map_rows, pad_ids
from tfm.decoding.config import GenerationConfig
from tfm.decoding.hypotheses import (
    TokenHypothesis,
    as_token_hypotheses,
    make_keys,
    make_limits,
    run_search,
)
from tfm.decoding.protocol import (
    Ensemble,
    Params,
    as_ensemble,
    search_parameters,
    with_dtype,
)
from tfm.devices.memory import count_elements
from tfm.devices.mesh import place_rows
from tfm.errors import UserError, check_texts

log = logging.getLogger(__name__)


class Continuation(NamedTuple):
    """The text that follows a prefix, and its score.

    The score is the log-probability of all its tokens including EOS, even if EOS was forced because the
    maximum number of tokens was reached. A search divides it by the length penalty.
    """

    text: str
    score: float


def generate_texts(
    model: nn.Module,
    params: Params | Ensemble,
    tokenizer: Any,
    prefixes: Sequence[str],
    config: GenerationConfig,
    *,
    start_index: int = 0,
) -> list[list[Continuation]]:
    """Continues texts.

    Args:
      model, params, config, start_index: See `generate_ids`.
      tokenizer: The tokenizer of the model.
      prefixes: Texts. They may be empty.

    Returns:
      A list for each text, with `config.samples` continuations in arbitrary order, or the hypotheses of the
      beam with the best first. The texts do not contain the prefix.

    Raises:
      UserError: See `generate_ids`. Also if a prefix is not a text.
    """
    prefixes = check_texts("prefixes", prefixes)
    encoded = tokenizer.encode(prefixes)
    generated = generate_ids(model, params, encoded, config, start_index=start_index)
    return [
        [
            Continuation(_decode_after(tokenizer, prefix, ids, hypothesis.ids), hypothesis.score)
            for hypothesis in hypotheses
        ]
        for prefix, ids, hypotheses in zip(prefixes, encoded, generated, strict=True)
    ]


def _decode_after(tokenizer: Any, prefix: str, prefix_ids: Sequence[int], ids: Sequence[int]) -> str:
    """Returns the text of `ids` after a prefix.

    The ids are decoded together with the prefix, because a tokenizer may drop a blank at the start of a text.
    """
    text = tokenizer.decode([*prefix_ids, *ids])
    return text.removeprefix(prefix) if text.startswith(prefix) else tokenizer.decode(ids)


def generate_ids(
    model: nn.Module,
    params: Params | Ensemble,
    prefixes: Sequence[Sequence[int]],
    config: GenerationConfig,
    *,
    start_index: int = 0,
) -> list[list[TokenHypothesis]]:
    """Continues lists of ids.

    A prefix and its continuation may need more positions than the model has. Samples and greedy search then
    see a sliding window of the last tokens. A beam search sees only the last tokens of the prefix, and so
    does every generation with `no_repeat_ngram` or a `repetition_penalty`. The function then logs a warning.

    Args:
      model: A `tfm.decoding.protocol.LanguageModel`.
      params: The parameters of the model, or a tuple with the parameters of each member of an ensemble. An
        ensemble averages probabilities.
      prefixes: Lists of ids without special ids. An empty list begins a new text.
      config: A `GenerationConfig`.
      start_index: Index of the first prefix. The random key of a sample depends only on the seed, on the
        index of its prefix and on its number among the samples of this prefix.

    Returns:
      A list of `TokenHypothesis` for each prefix, in the order of the prefixes. The ids contain EOS, but not
      the prefix. They are at most `config.max_tokens` ids and EOS. A list is shorter if the search finds
      fewer hypotheses.

    Raises:
      UserError: If the model has no more positions than `config.max_tokens` in a beam search, with
        `no_repeat_ngram` or with a `repetition_penalty`, if its window has a single position, if an ensemble
        has a repetition penalty, if a single prefix does not fit into the memory, or if probabilities are
        NaN.
    """
    members = tuple(search_parameters(member, config.dtype) for member in as_ensemble(params))
    keys = make_keys(config.seed, start_index + np.arange(len(prefixes))[:, None])
    prompts = [[BOS_ID, *ids] for ids in prefixes]
    max_length = model.config.max_length
    slides = [max_length is not None and len(ids) + config.max_tokens > max_length for ids in prompts]
    if _needs_whole_output(config):
        prompts = [
            _cut_prompt(ids, max_length, config.max_tokens) if long else ids
            for ids, long in zip(prompts, slides, strict=True)
        ]
        slides = [False] * len(prompts)
    results: list[list[TokenHypothesis]] = [[] for _ in prompts]
    for generate, is_sliding in ((_generate, False), (_generate_sliding, True)):
        rows = np.flatnonzero(np.array(slides, bool) == is_sliding)
        if len(rows):
            generated = generate(model, members, [prompts[i] for i in rows], config, keys[rows])
            for row, hypotheses in zip(rows, generated, strict=True):
                results[row] = hypotheses
    return results


def _needs_whole_output(config: GenerationConfig) -> bool:
    """Returns whether a search reads the whole output in each step, so that its window cannot slide."""
    is_beam_search = not config.samples and config.beam_size > 1
    return is_beam_search or config.no_repeat_ngram > 0 or config.repetition_penalty != 1


def _cut_prompt(prompt: list[int], max_length: int, max_tokens: int) -> list[int]:
    """Returns the last tokens of a prompt, so that `max_tokens` of `max_length` positions remain.

    Logs a warning if tokens of the text are cut off. The first token of the prompt is BOS.

    Raises:
      UserError: If no position remains for the prompt.
    """
    kept = max_length - max_tokens
    if kept < 1:
        raise UserError(
            "Expected decoding.max_tokens to be below the number of positions of the model "
            f"({max_length:,}) for a beam search, decoding.no_repeat_ngram or decoding.repetition_penalty, "
            f"got {max_tokens:,}. Lower it to at most {max_length - 1:,}, or turn these options off "
            "(decoding.beam_size=1, decoding.no_repeat_ngram=0 and decoding.repetition_penalty=1)."
        )
    length = len(prompt) - 1
    if kept < length:
        log.warning(
            "Using only the last %s of %s tokens of a text, because up to %s more tokens follow "
            "(decoding.max_tokens)",
            f"{kept:,}",
            f"{length:,}",
            f"{max_tokens:,}",
        )
    return prompt[-kept:]


def _generate(
    model: nn.Module,
    members: Ensemble,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    keys: jax.Array,
    is_cut: bool = False,
) -> list[list[TokenHypothesis]]:
    """Continues prompts that fit, with their continuations, into the model's positions."""

    def make_arguments(rows, widths):
        context = pad_ids([prompts[i][:-1] for i in rows], width=widths[0])
        if model.config.max_length is not None:  # The columns that are cut off contain only padding.
            context = context[:, : model.config.max_length - config.max_tokens - (not is_cut)]
        last = np.array([prompts[i][-1] for i in rows], np.int32)
        context, last, row_keys = place_rows((context, last, keys[np.array(rows)]), like=members)
        return model, members, context, last, config, row_keys, is_cut

    def describe(row):
        text = f"Continuing a text of {len(prompts[row]):,} tokens"
        return text, "Lower decoding.samples or decoding.max_tokens"

    rows = map_rows(
        generate_batch,
        make_arguments,
        [(len(ids) - 1,) for ids in prompts],
        batch_size=config.batch_size,
        describe=describe,
        shapes=find_shapes(count_elements(members) * config.width, generate_batch, model, config, is_cut),
        like=members,
    )
    return as_token_hypotheses(rows)


def _generate_sliding(
    model: nn.Module,
    members: Ensemble,
    prompts: Sequence[list[int]],
    config: GenerationConfig,
    keys: jax.Array,
) -> list[list[TokenHypothesis]]:
    """Continues prompts that need more positions than the model has, with a window that slides over the text.

    In each round, the last tokens of the text fill one half of the window, and new tokens fill the other
    half. The next round reads the last tokens again, beginning at position 0, because cached keys and values
    contain learned positions and cannot be moved.
    """
    count, max_length = max(config.samples, 1), model.config.max_length
    single = dataclasses.replace(config, samples=min(config.samples, 1), length_penalty=0.0)
    texts = [list(prompt) for prompt in prompts for _ in range(count)]
    scores = [0.0] * len(texts)
    unfinished, added = list(range(len(texts))), 0
    while unfinished and added < config.max_tokens:
        tokens = min(max(max_length // 2, 1), config.max_tokens - added)
        is_cut = added + tokens < config.max_tokens
        context = max_length - tokens - (not is_cut) + 1
        if context < 1:
            raise UserError(
                f"Expected model.max_positions to be at least 2 for generation, got {max_length}."
            )
        windows = [texts[i][-context:] for i in unfinished]
        chunk_keys = jnp.stack([_fold(keys[i // count], i % count, added) for i in unfinished])
        chunk = dataclasses.replace(single, max_tokens=tokens)
        generated = _generate(model, members, windows, chunk, chunk_keys, is_cut)
        for i, hypotheses in zip(unfinished, generated, strict=True):
            texts[i] += hypotheses[0].ids if hypotheses else [EOS_ID]
            scores[i] += hypotheses[0].score if hypotheses else -np.inf
        unfinished = [i for i in unfinished if texts[i][-1] != EOS_ID]
        added += tokens
    results: list[list[TokenHypothesis]] = [[] for _ in prompts]
    for i, (text, score) in enumerate(zip(texts, scores, strict=True)):
        ids = text[len(prompts[i // count]) :]
        penalty = 1.0 if config.samples else search.length_penalty(len(ids), config.length_penalty)
        if score > -np.inf:
            results[i // count].append(TokenHypothesis(ids, score / float(penalty)))
    return results


def _fold(key: jax.Array, *numbers: int) -> jax.Array:
    """Folds several numbers into a random key, one after the other."""
    return functools.reduce(jax.random.fold_in, numbers, key)


@functools.partial(jax.jit, static_argnums=(0, 4, 6))
def generate_batch(
    model: nn.Module,
    members: Ensemble,
    context: jax.Array,
    last: jax.Array,
    config: GenerationConfig,
    keys: jax.Array,
    is_cut: bool = False,
) -> search.Hypotheses:
    """Continues one batch of prefixes. Compiles once for each shape.

    Args:
      model, config: See `generate_ids`.
      members: The `search_parameters` of each member of the ensemble.
      context: int32 [B, P], all tokens of each prefix except the last, padded with 0.
      last: int32 [B], the last token of each prefix.
      keys: Random keys of the samples, [B].
      is_cut: Whether a continuation may end after `config.max_tokens` tokens without EOS. Beam search does
        not support this.

    Returns:
      `search.Hypotheses` with N = `config.width`.

    Raises:
      UserError, ValueError: See `run_search`.
    """
    model = with_dtype(model, config.dtype)
    max_length = config.max_tokens + (not is_cut)  # EOS needs one more position.
    options: dict[str, Any] = {"width": config.width, "max_length": max_length, "method": "init_cache"}
    caches = [model.apply({"params": params}, context, **options) for params in members]
    limits = make_limits(config, max_length)._replace(bos_id=last, force_eos=not is_cut)
    steps = [functools.partial(model.apply, {"params": params}, method="decode_step") for params in members]
    return run_search(config, steps, caches, limits, batch_size=len(last), keys=keys)
