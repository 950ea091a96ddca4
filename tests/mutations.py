"""Mistakes put into the code one at a time: do the tests notice?

    python -m tests.mutations [--only=TEXT]

Each `Mutation` replaces a piece of one file in a copy of the project, runs the tests that ought to notice in
a process of their own, and is killed where one of them fails. Prints those that survive, and exits with 1
where less than 95 % are killed or the tests fail without a mutation. `--only` takes the mutations whose file
or text has TEXT. Not part of the suite: it takes about as long. test_mutations.py checks the list itself.
"""

import argparse
import contextlib
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parent.parent
NEEDED = 0.95  # share of mutations that must be killed
SECONDS = 900  # for the tests of one mutation, which may make a loop endless
LEFT_OUT = (".git", ".venv", "runs", "__pycache__", ".pytest_cache", ".ruff_cache", "*.egg-info")
PASSED, FAILED = 0, 1  # exit codes of pytest; others are mistakes in the list


class Mutation(NamedTuple):
    """A mistake.

    Attributes:
      path: of the file, from the root of the project.
      old: text that stands in it once.
      new: what replaces it.
      tests: separated by blanks, without "tests/test_" and ".py": "ground" or "ground::test_causal_mask".
    """

    path: str
    old: str
    new: str
    tests: str

    @property
    def selection(self):
        """The tests as pytest's arguments."""
        parts = (test.partition("::") for test in self.tests.split())
        return [f"tests/test_{file}.py{colons}{name}" for file, colons, name in parts]

    def apply(self, text):
        """The text of the file with the mistake."""
        assert text.count(self.old) == 1, f"{self.path} has {self.old!r} {text.count(self.old)} times"
        return text.replace(self.old, self.new)

    def __str__(self):
        return f"{self.path}: {self.old.strip()!r} -> {self.new.strip()!r}"


# Path -> (old, new, tests).
_LIST = {
    "tfm/attention.py": [
        ("scale = query.shape[-1] ** -0.5 if", "scale = query.shape[-1] ** -1.0 if", "attention"),
        ("logits = logits + bias.astype(jnp.float32)", "logits = logits", "attention"),
        ("logits.max(-1, keepdims=True))), 0.0", "logits.max(-1, keepdims=True))), 1.0", "attention"),
        ("return jnp.where(attends, output, 0)", "return output", "attention"),
    ],
    "tfm/masks.py": [
        ("[..., :, None] >= key_positions", "[..., :, None] > key_positions", "ground"),
        ("return (same & valid)[", "return same[", "ground"),
        ("(tokens != pad_id)", "(tokens > 0)", "ground"),
    ],
    "tfm/positions.py": [
        ("MAX_TIMESCALE = 10_000.0", "MAX_TIMESCALE = 1_000.0", "ground"),
        ("jnp.stack([sine, cosine]", "jnp.stack([cosine, sine]", "ground"),
        ("index / max(half - 1, 1)", "index / half", "ground"),
    ],
    "tfm/losses.py": [
        (
            "other = smoothing / (classes - 1)\n    # sum_v",
            "other = smoothing / classes\n    # sum_v",
            "ground",
        ),
        ("share - (1 - smoothing - other), share", "share - (1 - smoothing), share", "ground"),
        (
            "count = weights.astype(jnp.float32).sum()\n    return {name",
            "count = jnp.float32(weights.size)\n    return {name",
            "ground",
        ),
        ('scale = cotangents["loss"][0]', "scale = 1.0", "ground"),
        ("label_logit >= largest)", "label_logit >= logits.mean(-1))", "ground"),
    ],
    "tfm/schedules.py": [
        (
            "jnp.float32) + 1\n        return scale",
            "jnp.float32) + 2\n        return scale",
            "ground update::test_fields_of_adam_and_schedule_count",
        ),
        (
            "return scale * d_model**-0.5 *",
            "return scale * 512**-0.5 *",
            "ground update::test_fields_of_adam_and_schedule_count",
        ),
        (
            "return scale * d_model**-0.5 *",
            "return d_model**-0.5 *",
            "update::test_fields_of_adam_and_schedule_count",
        ),
        ("falling = (total_steps + 1 - step)", "falling = (total_steps - step)", "ground"),
    ],
    "tfm/dropout.py": [
        ("wide * (2**16 / (2**16 - threshold))", "wide", "dropout"),
        ("wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))", "wide = x", "dropout"),
        ("_finalise(_finalise(counter ^ low) ^ high)", "_finalise(counter ^ low)", "dropout"),
        ("_finalise(_finalise(counter ^ low) ^ high)", "((counter ^ low) * high)", "dropout"),
        (".reshape(shape)\n", ".reshape(shape) % shape[-1]\n", "dropout"),
    ],
    "tfm/layers/sublayers.py": [
        (
            "return self.key(memory), self.value(memory)",
            "return self.value(memory), self.key(memory)",
            "layers",
        ),
        (
            "by_batch(norm(x + drop(sublayer(x), train=train)))",
            "by_batch(norm(drop(x + sublayer(x), train=train)))",
            "dropout_wiring::test_positions_of_dropout_are_the_papers",
        ),
        ("by_batch(norm(x + drop(sublayer(x)", "by_batch(norm(drop(sublayer(x)", "layers"),
        ("drop(sublayer(norm(x)), train=train)", "drop(norm(sublayer(x)), train=train)", "layers"),
        (
            "x = Dropout(self.dropout_rate)(x, train=train)",
            "x = Dropout(0.1)(x, train=train)",
            "dropout_wiring::test_positions_of_dropout_are_the_papers",
        ),
        ("x = ACTIVATIONS[self.activation](x)", "x = nn.relu(x)", "layers"),
        (".astype(self.dtype) * self.features**0.5", ".astype(self.dtype)", "layers"),
        (
            "init = nn.initializers.normal(self.features**-0.5)\n        self.table",
            "init = nn.initializers.normal(1.0)\n        self.table",
            "layers",
        ),
        ("rate = self.dropout_rate if train else 0.0", "rate = self.dropout_rate", "layers"),
        ("nn.initializers.glorot_uniform()", "nn.initializers.lecun_normal()", "layers"),
        (
            "mixed = dot_product_attention(query, key, value, mask=mask)\n        return self.output(mixed[",
            "mixed = dot_product_attention(query, key, value)\n        return self.output(mixed[",
            "transformer::test_cached_decoding_of_other_models",
        ),
    ],
    "tfm/layers/blocks.py": [
        ("memory, mask=memory_mask, train=train)", "memory, mask=None, train=train)", "layers"),
        (
            'keys = jax.random.split(self.make_rng("dropout"), self.depth)',
            'keys = jnp.stack([self.make_rng("dropout")] * self.depth)',
            "dropout_wiring::test_scanned_layers_have_their_own_keys",
        ),
        (
            "return self.norm(x), written",
            "return x, written",
            "transformer::test_cached_decoding_of_other_models",
        ),
    ],
    "tfm/models/transformer.py": [
        (
            "return self.dropout(x, train=train)",
            "return x",
            "dropout_wiring::test_positions_of_dropout_are_the_papers",
        ),
        (
            "mask = combine_masks(mask, segment_mask(segments, segments))",
            "mask = combine_masks(mask)",
            "loss_wiring::test_the_loss_is_that_of_the_sentences_alone",
        ),
        (
            "memory_mask=segment_mask(target_segments, input_segments)",
            "memory_mask=padding_mask(inputs)",
            "loss_wiring::test_the_loss_is_that_of_the_sentences_alone",
        ),
        (
            "position_of_each = jnp.full(tokens.shape, position)",
            "position_of_each = jnp.zeros_like(tokens)",
            "transformer::test_cached_decoding_of_other_models",
        ),
        (
            'final_norm = config.norm_order != "post"',
            "final_norm = False",
            "transformer::test_the_forward_pass_against_numpy",
        ),
        (
            "x = self._embed(targets, self.decoder_positions, positions, train=train)",
            "x = self._embed(targets, self.encoder_positions, positions, train=train)",
            "learned_positions::test_the_gradient_reaches_the_rows_used_and_no_other",
        ),
    ],
    "tfm/decode_cache.py": [
        (
            "replace(ancestors=ancestors, attended=attended)",
            "replace(attended=attended)",
            "transformer::test_cached_decoding_is_the_full_forward_of_each_hypothesis_own_history",
        ),
        ("attended=self.attended + weights", "attended=weights", "search_state"),
        ("position >= self.max_length:", "position > self.max_length:", "search_state"),
    ],
    "tfm/inspection.py": [
        (', key=lambda name: int(name.rpartition("_")[2]))', ")", "decoding_wiring"),
    ],
    "tfm/search/scores.py": [
        ("((5.0 + length) / 6.0)", "((6.0 + length) / 7.0)", "search::test_length_penalty_is_equation_14"),
        (
            "- jnp.log(len(each)), states",
            ", states",
            "search_state::test_an_ensemble_gives_the_log_of_the_mean_probability",
        ),
    ],
    "tfm/search/beam.py": [
        (
            "live_scores / jnp.maximum(length",
            "live_scores / jnp.minimum(length",
            "search::test_the_beam_stops_exactly_when_no_live_hypothesis_can_win",
        ),
        (
            "can_win > finished.scores[:, -1:]",
            "can_win > finished.scores[:, :1]",
            "search::test_a_narrow_beam_finds_what_a_plain_beam_search_without_early_stop_finds",
        ),
        ("tiny, 1.0)", "tiny, jnp.inf)", "constraints::test_the_coverage_penalty_is_equation_14"),
        (
            "length_penalty(length, alpha) + extra",
            "length_penalty(length + 1, alpha) + extra",
            "search::test_a_beam_that_holds_every_sequence_finds_and_orders_them_all",
        ),
    ],
    "tfm/search/hypotheses.py": [
        (
            "values = jnp.where(jnp.isin(tokens, jnp.array(self.forbidden)), -jnp.inf, values)",
            "values = jnp.where(tokens == self.forbidden[0], -jnp.inf, values)",
            "constraints::test_forbidden_tokens_are_never_chosen_and_keep_their_probability",
        ),
        (
            "(position + 1 >= self.minimum)",
            "(position >= self.minimum)",
            "constraints::test_a_minimum_length_holds_as_far_as_the_limit_allows",
        ),
        ("* block + places % block", "* block + places // block", "search_state"),
        ("if eos_id in self.forbidden:", "if eos_id == self.forbidden:", "search_state"),
        ("max_length > most:", "max_length > most + 1:", "search_state"),
    ],
    "tfm/search/single.py": [
        (
            "_draw(key, logits / temperature, top_k, top_p)",
            "_draw(key, logits, top_k, top_p)",
            "search::test_samples_are_as_frequent_as_they_are_probable",
        ),
        (
            "(number, position), row)",
            "(number,), row)",
            "search::test_samples_are_as_frequent_as_they_are_probable",
        ),
        (
            "jnp.cumsum(probabilities) - probabilities",
            "jnp.cumsum(probabilities)",
            "search::test_samples_are_as_frequent_as_they_are_probable",
        ),
        (
            "position + 1, found.lengths)",
            "position, found.lengths)",
            "search::test_greedy_search_takes_the_most_probable_token",
        ),
    ],
    "tfm/decoding.py": [
        (
            "limits = (inputs != PAD_ID).sum(-1)",
            "limits = jnp.full(len(inputs), inputs.shape[1])",
            "decoding_wiring",
        ),
        ("(PAD_ID, BOS_ID), prefix)", "(BOS_ID,), prefix)", "decoding_wiring"),
        ("own = keys[np.array(rows)]", "own = keys[: len(rows)]", "decoding_wiring"),
        ("config.min_length, (", "1, (", "decoding_wiring"),
    ],
    "tfm/forced.py": [
        (".at[:, 0].set(BOS_ID)", "", "decoding_wiring"),
        ("- jnp.log(len(members))", "", "decoding_wiring"),
    ],
    "tfm/texts.py": [
        ("ranked.get, reverse=True)", "ranked.get)", "decoding_wiring"),
        ("sum(part[n].score for part in parts)", "max(part[n].score for part in parts)", "decoding_wiring"),
        ("return parts[:1]", "return parts[-1:]", "decoding_wiring"),
    ],
    "tfm/data/batches.py": [
        (
            "chosen[self._host_index :: self._host_count]",
            "chosen[self._host_index :]",
            "batches::test_hosts_share_each_batch_row_by_row",
        ),
        (
            "default_rng((self._seed, epoch))",
            "default_rng(epoch)",
            "batches::test_the_order_is_a_function_of_seed_and_step",
        ),
        (
            "ranges(np.zeros(len(pairs), int), lengths)),",
            "ranges(column, lengths)),",
            "loss_wiring::test_the_loss_is_that_of_the_sentences_alone",
        ),
        (
            "np.repeat(segment, lengths)",
            "np.repeat(np.minimum(segment, 1), lengths)",
            "loss_wiring::test_the_loss_is_that_of_the_sentences_alone",
        ),
        (
            "return 1 - self.cache",
            "return 0.9 - self.cache",
            "batches::test_the_padding_share_is_what_the_batches_show",
        ),
    ],
    "tfm/data/rows.py": [
        ("(lengths > config.longest).any(1)", "(lengths >= config.longest).any(1)", "batches"),
        ("row[0] >= source and row[1] >= target", "row[0] >= source", "batches"),
        ("lengths[usable].max(1)", "lengths[usable, 0]", "batches"),
        ("default_rng(seed).permutation(usable)", "default_rng(0).permutation(usable)", "batches"),
    ],
    "tfm/data/cache.py": [
        ("len(vocabulary) <= 1 << 16", "len(vocabulary) <= 1 << 18", "batches"),
        ("{pairs.fingerprint} {vocabulary.fingerprint}", "{pairs.fingerprint}", "batches"),
    ],
    "tfm/data/text.py": [
        ('.decode("utf-8").strip()', '.decode("utf-8").rstrip()', "sources"),
        ("len(BOM) if self._bytes[:3] == BOM else 0", "0", "sources"),
    ],
    "tfm/data/vocabulary.py": [
        ("pieces[i - 1].endswith(SENTENCE_ENDS)", "pieces[i].endswith(SENTENCE_ENDS)", "vocabulary"),
        ("ids = ids[: ids.index(EOS_ID)]", "ids = [i for i in ids if i != EOS_ID]", "vocabulary"),
    ],
    "tfm/training/step.py": [
        (
            "key = jax.random.fold_in(rng, state.step)",
            "key = rng",
            "dropout_wiring::test_every_position_of_every_step_has_its_own_key",
        ),
        (
            "key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))",
            "key = jax.random.fold_in(key, 0)",
            "dropout_wiring::test_micro_batches_and_devices_have_their_own_keys",
        ),
        (
            "function(part, jax.random.fold_in(key, index))",
            "function(part, key)",
            "dropout_wiring::test_micro_batches_and_devices_have_their_own_keys",
        ),
        (
            "gradient / count, gradients)",
            "gradient, gradients)",
            "training::test_a_step_descends_the_mean_over_tokens_not_over_rows",
        ),
        (
            "gradients, metrics = jax.lax.psum((gradients, metrics), axis_name)",
            "gradients = jax.lax.psum(gradients, axis_name)",
            "update::test_devices_and_micro_batches_make_the_update_of_the_whole",
        ),
        (
            "gradients, metrics = jax.lax.psum((gradients, metrics), axis_name)",
            "gradients, metrics = jax.lax.pmean((gradients, metrics), axis_name)",
            "update::test_devices_and_micro_batches_make_the_update_of_the_whole",
        ),
        (
            "state.average, 1 - ema_decay)",
            "state.average, ema_decay)",
            "update::test_the_average_follows_the_parameters",
        ),
        ("return x + 1 if", "return x if", "trouble::test_a_skipped_step_changes_nothing_but_the_counts"),
        (" & ~state.halted", "", "trouble::test_a_step_that_is_not_finite_halts_the_state_as_it_was"),
        (
            "if total != 0 or count != 0:",
            "if count != 0:",
            "loss_wiring::test_a_loss_that_counts_rows_of_zeros_is_refused",
        ),
    ],
    "tfm/training/optimizer.py": [
        ("b2=config.adam_b2", "b2=0.999", "update"),
        ("b1=config.adam_b1", "b1=0.9", "update::test_fields_of_adam_and_schedule_count"),
        ("eps=config.adam_epsilon", "eps=1e-9", "update::test_fields_of_adam_and_schedule_count"),
        (
            "inverse_sqrt(d_model, config.warmup_steps, config.learning_rate_scale)",
            "inverse_sqrt(d_model, config.warmup_steps)",
            "update::test_fields_of_adam_and_schedule_count",
        ),
        (
            "inverse_sqrt(d_model, config",
            "inverse_sqrt(512, config",
            "update::test_updates_of_the_default_config_are_the_papers",
        ),
        (
            "(d_model * config.warmup_steps) ** -0.5",
            "config.warmup_steps**-0.5",
            "update::test_updates_of_each_config_are_adam_at_its_rate",
        ),
    ],
    "tfm/training/assembly.py": [
        ("jax.random.key(config.seed)", "jax.random.key(0)", "update::test_the_seed_counts"),
        (
            "config.ema_decay, config.micro_batches,",
            "config.ema_decay, 1,",
            "update::test_fields_reach_the_step",
        ),
    ],
    "tfm/training/stopping.py": [
        (
            "if score > self.best:",
            "if score >= self.best:",
            "training::test_evaluations_count_those_behind_the_best",
        ),
    ],
    "tfm/training/watch.py": [
        (
            "if loss > self._first_loss else 0",
            "if loss > self._first_loss else self._above",
            "trouble::test_a_loss_that_stays_above_its_start_is_warned_of_once",
        ),
    ],
    "tfm/training/checkpoints.py": [
        ("(x / count).astype", "(x / (count + 1)).astype", "training::test_average_is_the_mean_in_float64"),
    ],
    "tfm/runs.py": [
        ("checkpoints.latest() if best is None else best", "checkpoints.latest()", "runs"),
        ("steps[-1] - steps[-2]", "every", "runs"),
    ],
    "tfm/tasks/translation.py": [
        (
            'weights = (batch["target_segments"] > 0).',
            'weights = ((batch["target_segments"] > 0) & (targets != 2)).',
            "loss_wiring::test_the_loss_is_that_of_the_sentences_alone",
        ),
        (
            'target_positions=batch["target_positions"],\n            target_segments',
            "target_positions=None,\n            target_segments",
            "loss_wiring::test_the_loss_is_that_of_the_sentences_alone",
        ),
        (
            'target_segments=batch["target_segments"],\n            train',
            "target_segments=None,\n            train",
            "loss_wiring::test_the_loss_is_that_of_the_sentences_alone",
        ),
        (
            'input_segments=batch["input_segments"]',
            "input_segments=None",
            "loss_wiring::test_the_loss_is_that_of_the_sentences_alone",
        ),
        (
            "weights, self.config.label_smoothing, self",
            "weights, 0.0, self",
            "loss_wiring::test_the_loss_is_that_of_the_sentences_alone",
        ),
        (
            "jnp.where(positions == 0, BOS_ID, shifted)",
            "shifted.at[:, 0].set(BOS_ID)",
            "loss_wiring::test_the_loss_is_that_of_the_sentences_alone",
        ),
        ("train=rng is not None", "train=False", "loss_wiring::test_a_key_turns_dropout_on"),
        (
            "(old_total + float(total), old_count + float(count))",
            "(old_total + float(total) / float(count), old_count + 1)",
            "loss_wiring::test_validation_is_the_mean_over_all_tokens",
        ),
        (
            '(batch["input_segments"] > 0).sum() + ',
            "",
            "loss_wiring::test_tokens_of_both_sides_are_counted",
        ),
    ],
    "tfm/evaluation.py": [
        ("np.exp(-pieces.mean(dtype=np.float64))", "np.exp(-pieces.sum() / fits.sum())", "evaluation"),
        ("right_scores > wrong_scores", "right_scores >= wrong_scores", "evaluation"),
    ],
    "tfm/metrics.py": [
        (r'compile(r"(\S)-(\S)")', r'compile(r"(\w)-(\w)")', "metrics"),
        ("tokens(text.lower())", "tokens(text)", "metrics"),
        ("1.0 if first.score == second.score else second.p_value", "second.p_value", "compare"),
    ],
    "tfm/alignments.py": [
        ("1 - 2 * sum(", "1 - sum(", "alignments"),
        ("(int(i), j) for j, i", "(j, int(i)) for j, i", "alignments"),
    ],
    "tfm/bayes_risk.py": [
        ("/ len(texts)", "/ len(counts)", "alignments"),
        ("sum(count * measure", "sum(measure", "alignments"),
    ],
}
MUTATIONS = [Mutation(path, *fields) for path, each in _LIST.items() for fields in each]


def main():
    """Runs the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="mutations whose file or text has TEXT")
    only = parser.parse_args().only
    chosen = [mutation for mutation in MUTATIONS if only in str(mutation)]
    if not chosen:
        sys.exit(f"No mutation has {only!r}.")
    with tempfile.TemporaryDirectory() as folder:
        survivors = run(chosen, pathlib.Path(folder))
    killed = len(chosen) - len(survivors)
    print(f"{killed} of {len(chosen)} mutations killed ({100 * killed / len(chosen):.1f} %)")
    for mutation in survivors:
        print(f"survived  {mutation}")
    sys.exit(killed < NEEDED * len(chosen))


def run(mutations, folder):
    """Those that survive; `folder` is for the copy of the project and the programs that JAX compiles."""
    copy = folder / "project"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "compiled"))  # see conftest.py
    os.environ |= {
        "PYTHONDONTWRITEBYTECODE": "1",  # of a file that changes twice in a second
        "PYTHONPATH": str(copy),
    }
    sys.dont_write_bytecode = True
    _import_libraries()
    everything = sorted({test for mutation in mutations for test in mutation.selection})
    if _run_tests(everything, copy, folder) != PASSED:
        sys.exit("The tests fail without any mutation.")
    return [mutation for mutation in mutations if not is_killed(mutation, copy, folder)]


def is_killed(mutation, copy, folder):
    """Whether a test fails with the mutation; prints the answer."""
    path, began = copy / mutation.path, time.monotonic()
    whole = path.read_text(encoding="utf-8")
    path.write_text(mutation.apply(whole), encoding="utf-8")
    code = _run_tests(["-x", *mutation.selection], copy, folder, SECONDS)
    path.write_text(whole, encoding="utf-8")
    if code not in (PASSED, FAILED, -signal.SIGALRM):
        sys.exit(f"pytest ended with {code}, see {folder / 'output'}: {mutation}")
    answer = "survived" if code == PASSED else "killed"
    print(f"{answer:<9} {time.monotonic() - began:4.0f} s  {mutation}", flush=True)
    return code != PASSED


def _import_libraries():
    """Once for all processes, which are forked: libraries take longer to import than most tests to run."""
    import scipy.stats  # noqa: F401


def _run_tests(arguments, copy, folder, seconds=0):
    """pytest's exit code, or minus the number of the signal that ended it; SIGALRM after so many seconds."""
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            signal.alarm(seconds)
            os._exit(_pytest(arguments, copy, folder))
        os._exit(70)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _pytest(arguments, copy, folder):
    import pytest

    with open(folder / "output", "w", encoding="utf-8") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "tfm")]:
        del sys.modules[name]
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    return int(pytest.main(["-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'pytest'}", *arguments]))


if __name__ == "__main__":
    main()
