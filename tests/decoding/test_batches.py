"""Tests that batches which do not fit into memory are split and give equal results."""

import dataclasses
import gc
import threading
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.programs import count_programs
from tfm import search
from tfm.data.batches.rows import list_widths
from tfm.decoding import batches, translate
from tfm.decoding.batches import BatchShapes, map_rows, pad_ids
from tfm.decoding.config import DecodingConfig, GenerationConfig
from tfm.decoding.generate import generate_ids
from tfm.decoding.score import score_pairs
from tfm.decoding.translate import translate_ids
from tfm.devices.backend import compile_for
from tfm.devices.memory import free_memory
from tfm.errors import UserError
from tfm.models import Transformer, TransformerConfig
from tfm.models.decoder_lm import DecoderLM, DecoderLMConfig
from tfm.search import run_in_stages
from tfm.testing.parameters import random_parameters

LENGTHS = [3, 9, 4, 4, 7, 8, 2]
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED: 9 bytes.\nmore"


class Program:
    """A compiled program that adds 100 to the index of each row, on a device with limits.

    Attributes:
      bytes_per_row: The bytes per row that the compiler reports.
      max_rows: The number of rows above which a batch runs out of memory.
      max_at_once: The number of simultaneous batches above which they run out of memory.
      tried: The number of rows of each batch that ran.
      measured: The number of rows of each batch whose memory was measured.
      at_once: The largest number of batches that ran at the same time.
      meets: Whether the first batch waits until a second batch runs, however slow the machine is.
    """

    def __init__(self, bytes_per_row=0, max_rows=99, max_at_once=99, error=OUT_OF_MEMORY, meets=False):
        self.bytes_per_row, self.max_rows, self.max_at_once = bytes_per_row, max_rows, max_at_once
        self.error, self.tried, self.measured, self.at_once = error, [], [], 0
        self._running, self._lock = 0, threading.Lock()
        self.meets, self._have_met = meets, threading.Event()

    def lower(self, rows):
        """Returns an object like `jax.stages.Lowered`."""
        self.measured.append(rows.shape[0])
        temporary = self.bytes_per_row * rows.shape[0]
        memory = types.SimpleNamespace(temp_size_in_bytes=temporary, output_size_in_bytes=0)
        compiled = types.SimpleNamespace(memory_analysis=lambda: memory)
        return types.SimpleNamespace(compile=lambda: compiled)

    def __call__(self, rows):
        with self._lock:
            self.tried.append(len(rows))
            self._running += 1
            self.at_once = max(self.at_once, self._running)
            fits = self._running <= self.max_at_once and len(rows) <= self.max_rows
            if self._running == 2:
                self._have_met.set()
        if self.meets:
            assert self._have_met.wait(60)
        else:
            time.sleep(0.02)
        with self._lock:
            self._running -= 1
        if not fits:
            raise jax.errors.JaxRuntimeError(self.error)
        return {"sum": rows + 100}


def own_shapes():
    """Returns the shapes of a model whose padding costs more than any compilation."""
    return BatchShapes(int(batches.MAX_PADDING_WORK) + 1)


def as_tuples(lengths):
    return [(length,) for length in lengths]


def run(program, batch_size=4, lengths=LENGTHS):
    def describe(row):
        return f"Row {row}", "Shorten it"

    options = {"batch_size": batch_size, "describe": describe, "shapes": own_shapes()}
    rows = map_rows(program, lambda rows, _: (np.array(rows),), as_tuples(lengths), **options)
    return [int(row["sum"]) for row in rows]


EXPECTED = [i + 100 for i in range(len(LENGTHS))]


@pytest.fixture
def memory(monkeypatch):
    """Returns a function that sets the free memory of the device in bytes."""
    return lambda size: monkeypatch.setattr(batches, "free_memory", lambda: size)


@pytest.mark.parametrize("count", [1, 3, 8, 21])
def test_batches_have_a_power_of_two_of_rows_of_similar_length(count):
    lengths, seen = np.random.default_rng(0).integers(1, 40, count).tolist(), []

    def make_arguments(rows, widths):
        assert widths[0] >= max(lengths[row] for row in rows)
        seen.append(rows)
        return (np.array(rows),)

    map_rows(Program(), make_arguments, as_tuples(lengths), batch_size=8, describe=None, shapes=own_shapes())
    assert {len(rows) for rows in seen} <= {1, 2, 4, 8}
    assert sorted({row for rows in seen for row in rows}) == list(range(count))
    ordered = [lengths[row] for rows in sorted(seen, key=lambda rows: -lengths[rows[0]]) for row in rows]
    assert ordered == sorted(ordered, reverse=True)


def test_ids_are_padded_to_few_widths():
    rows = [[5] * length for length in (3, 0, 19)]
    padded = pad_ids(rows, fill=-1)
    assert padded.shape[1] in list_widths(1 << 10)
    for row, ids in zip(padded.tolist(), rows, strict=True):
        assert row == ids + [-1] * (len(row) - len(ids))


def test_ids_have_fewer_widths_on_accelerators():
    lengths = range(1, 300)
    with compile_for("cuda"):
        widths = {pad_ids([[5] * length]).shape[1] for length in lengths}
    assert widths == {32, 64, 128, 256, 512}
    assert len(widths) < len({pad_ids([[5] * length]).shape[1] for length in lengths})


SMALL = 1_000  # parameters of a model that computes 100 million tokens in the time of a compilation
TOKENS_OF_A_COMPILATION = int(batches.MAX_PADDING_WORK) // SMALL


def test_batches_of_a_small_model_share_the_shape_of_the_largest():
    shapes = BatchShapes(SMALL)
    assert [shapes.choose(shape) for shape in [(64, 24), (64, 16), (32, 8)]] == [(64, 24)] * 3


def test_batches_of_a_large_model_have_their_own_shapes():
    shapes, wanted = own_shapes(), [(64, 24), (64, 16), (32, 8)]
    assert [shapes.choose(shape) for shape in wanted] == wanted


def test_shape_whose_padding_has_cost_a_compilation_is_compiled():
    shapes, rows = BatchShapes(SMALL), TOKENS_OF_A_COMPILATION // 30
    chosen = [shapes.choose(shape) for shape in [(rows, 24), *[(rows, 16)] * 5]]
    assert chosen == [*[(rows, 24)] * 4, *[(rows, 16)] * 2]
    assert shapes.choose((rows, 12)) == (rows, 16)


@pytest.mark.parametrize("shape", [(64, 24 * 4), (64 * 4, 24), (64, 8, 24)])
def test_small_batch_never_becomes_many_times_as_large(shape):
    """The work of attention grows with the square of the width."""
    small = tuple(size // 8 for size in shape)
    shapes = BatchShapes(SMALL)
    assert [shapes.choose(shape), shapes.choose(small)] == [shape, small]


def test_batch_that_is_larger_on_one_axis_has_its_own_shape():
    shapes, wanted = BatchShapes(SMALL), [(64, 24, 8), (64, 16, 12), (32, 16, 8)]
    assert [shapes.choose(shape) for shape in wanted] == [(64, 24, 8), (64, 16, 12), (64, 16, 12)]


def test_accelerators_compute_each_batch_in_its_own_shape():
    shapes, wanted = BatchShapes(SMALL), [(64, 64), (64, 32)]
    with compile_for("cuda"):
        assert [shapes.choose(shape) for shape in wanted] == wanted


def test_batches_run_in_the_jax_contexts_of_the_caller():
    seen = []

    class Recording(Program):
        def __call__(self, rows):
            seen.append((jax.config.jax_default_matmul_precision, jax.config.jax_debug_nans))
            return super().__call__(rows)

    with jax.default_matmul_precision("highest"), jax.debug_nans(True):
        run(Recording())
    assert set(seen) == {("highest", True)}


@pytest.mark.parametrize(("size", "most"), [(None, 4), (800, 4), (799, 2), (399, 1), (75, 1)])
def test_batches_are_split_until_they_fit(memory, size, most):
    memory(size)
    program = Program(bytes_per_row=75)
    assert run(program) == EXPECTED
    assert max(program.tried) == most


def test_memory_of_each_shape_is_measured_once(memory):
    memory(800)
    program = Program(bytes_per_row=75)
    for _ in range(2):
        assert run(program, batch_size=2) == EXPECTED
    assert sorted(program.measured) == [1, 2]


@pytest.mark.parametrize("shards", range(2, 9))
@pytest.mark.parametrize("count", [1, 5, 6, 8])
def test_batches_are_split_for_any_number_of_shards(count, shards, memory, monkeypatch):
    """A part is filled up to a multiple of the shards. It may then be as large as the batch before."""
    memory(1000)
    monkeypatch.setattr(batches, "count_row_shards", lambda like: shards)
    program = Program(bytes_per_row=50)
    assert run(program, batch_size=8, lengths=LENGTHS[:count]) == EXPECTED[:count]
    assert all(rows % shards == 0 for rows in program.tried)


def test_rows_that_are_too_large_are_errors_before_they_run(memory):
    memory(2**30)
    program = Program(bytes_per_row=2**31)
    with pytest.raises(UserError, match=r"Row 1 .*2.00 GiB.*1.00 GiB.*Shorten it"):
        run(program)
    assert program.tried == []


@pytest.mark.parametrize(("bytes_per_row", "at_once"), [(37, 2), (38, 1)])
def test_two_batches_at_once_share_the_memory(memory, bytes_per_row, at_once):
    memory(100)
    program = Program(bytes_per_row, meets=at_once == 2)
    assert run(program, batch_size=1) == EXPECTED
    assert program.at_once == at_once


@pytest.mark.parametrize("most", [1, 2, 3])
def test_batch_size_that_ran_out_of_memory_is_not_tried_again(most):
    program = Program(max_rows=most)
    assert run(program) == EXPECTED
    assert len([count for count in program.tried if count > most]) <= 4  # two sizes on two threads


def test_row_that_fits_while_no_other_batch_runs_is_computed():
    program = Program(max_at_once=1, meets=True)
    assert run(program, batch_size=1) == EXPECTED
    assert program.at_once == 2


def test_single_row_that_runs_out_of_memory_is_an_error():
    with pytest.raises(UserError, match=r"Row \d .*RESOURCE_EXHAUSTED: 9 bytes\.\)\. Shorten it"):
        run(Program(max_rows=0))


def test_other_errors_of_the_device_are_raised():
    with pytest.raises(jax.errors.JaxRuntimeError, match="broken"):
        run(Program(max_rows=0, error="INTERNAL: broken"))


PIECES, TOKENS = 12, np.ones((1, 4), int)
SIZES = {"d_model": 16, "d_ff": 24, "heads": 2, "dropout": 0.0}
MODEL = Transformer(TransformerConfig(encoder_layers=1, decoder_layers=1, **SIZES), vocabulary_size=PIECES)
PARAMS = random_parameters(MODEL, TOKENS, TOKENS, deviation=0.5)
LM = DecoderLM(DecoderLMConfig(layers=1, positions="rotary", **SIZES), vocabulary_size=PIECES)
LM_PARAMS = random_parameters(LM, TOKENS, deviation=0.5)
SENTENCES = [[5, 6, 7, 2], [4, 2], [8, 3, 5, 4, 2], [9, 2]]
BEAM = DecodingConfig(beam_size=3, max_extra_tokens=4)
CALLS = {
    "translate": lambda config: translate_ids(MODEL, PARAMS, SENTENCES, config),
    "score": lambda config: score_pairs(MODEL, PARAMS, SENTENCES, SENTENCES[::-1], config),
    "generate": lambda config: generate_ids(
        LM, LM_PARAMS, SENTENCES, GenerationConfig(samples=2, max_tokens=4, batch_size=config.batch_size)
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CALLS)
def test_split_batches_give_equal_results(name, monkeypatch):
    """The memory allows half of the rows of a batch."""
    config, whole = dataclasses.replace(BEAM, batch_size=4), []
    measure = batches.measure_memory
    monkeypatch.setattr(batches, "free_memory", lambda: 1 << 40)
    monkeypatch.setattr(batches, "measure_memory", lambda *a: whole.append(measure(*a)) or whole[-1])
    expected = CALLS[name](config)
    monkeypatch.setattr(batches, "free_memory", lambda: (whole[0] - 1) / batches.MAX_MEMORY_FRACTION)
    found = CALLS[name](config)
    assert len(whole) > 2
    assert min(whole) < whole[0]
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


MANY = [[int(token) for token in [*ids, 2]] for ids in np.random.default_rng(0).integers(3, 12, (40, 7))]


@pytest.mark.long
@pytest.mark.parametrize("prefixes", [None, [row[:3] for row in MANY]])
@pytest.mark.parametrize(
    "fields", [{"beam_size": 1}, {"samples": 2}, {"beam_size": 3}, {"beam_size": 3, "coverage_penalty": 0.2}]
)
def test_search_in_stages_equals_small_batches(fields, prefixes, monkeypatch):
    """Many outputs are longer than the caches of the first stage."""
    calls = []
    monkeypatch.setattr(search, "run_in_stages", lambda *a, **k: calls.append(k) or run_in_stages(*a, **k))
    jax.clear_caches()
    results = []
    for batch_size in (translate.MIN_STAGED_ROWS, translate.MIN_STAGED_ROWS // 4):
        config = DecodingConfig(max_extra_tokens=20, batch_size=batch_size, **fields)
        found = translate_ids(MODEL, PARAMS, MANY, config, prefixes=prefixes)
        results.append([hypothesis for row in found for hypothesis in row])
    assert [call["part_size"] for call in calls] == [translate.MIN_STAGED_ROWS // 4]
    staged, plain = results
    assert [ids for ids, _ in staged] == [ids for ids, _ in plain]
    np.testing.assert_allclose([score for _, score in staged], [score for _, score in plain], rtol=1e-5)
    assert max(len(ids) for ids, _ in staged) > calls[0]["steps"]


@pytest.mark.long
@pytest.mark.parametrize("fields", [{"beam_size": 1000}, {"max_extra_tokens": 65_536}, {"samples": 1000}])
def test_search_that_never_fits_is_an_error_with_its_field(fields, memory):
    memory(2**20)
    ((name, value),) = fields.items()
    with pytest.raises(UserError, match=rf"input of 4 tokens .* MiB.*decoding\.{name} \({value:,}\)"):
        translate_ids(MODEL, PARAMS, [[5, 6, 7, 2]], dataclasses.replace(BEAM, **fields))


def test_translations_of_several_lengths_need_one_program():
    """A second call with shorter sentences uses the program of the first."""
    sentences = [[5] * length + [2] for length in (20, 14, 9, 11)]
    config = DecodingConfig(beam_size=1, max_extra_tokens=4, batch_size=2, seed=1)
    with count_programs() as programs:
        outputs = translate_ids(MODEL, PARAMS, sentences, config)
        shorter = translate_ids(MODEL, PARAMS, sentences[2:], config)
    assert len(programs) == 1
    assert [[ids for ids, _ in row] for row in outputs[2:]] == [[ids for ids, _ in row] for row in shorter]


def test_memory_of_a_program_includes_its_results():
    program = jax.jit(lambda x: jnp.concatenate([x, x]))
    assert 8_000 <= batches.measure_memory(program, (np.zeros(1000, np.float32),)) < 12_000


@pytest.mark.parametrize("place", [np.asarray, jnp.asarray, lambda x: jax.device_put(x, jax.devices()[0])])
def test_measuring_the_memory_compiles_the_program_that_a_call_runs(place):
    x, program = place(np.ones(3, np.float32)), jax.jit(lambda x: 2 * x)
    batches.measure_memory(program, (x,))
    with count_programs() as programs:
        program(x)
    assert programs == []


@pytest.mark.long
def test_free_memory_excludes_the_arrays_of_the_caller():
    gc.collect()
    before = free_memory()
    x = jax.device_put(np.zeros(10**6, np.float32))
    assert before - free_memory() == x.nbytes
