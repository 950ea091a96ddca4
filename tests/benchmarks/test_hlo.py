"""Tests of the analysis of compiled programs: FLOPs, memory traffic, collectives and host transfers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import hlo

# libtpu writes programs for a v5e in this format. The trip count is unknown, products are convolutions,
# and S(1) is a memory on the chip.
TPU = """HloModule jit_step, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[]{:T(128)} parameter(0)
  %y = f32[]{:T(128)} parameter(1)
  ROOT %sum = f32[]{:T(128)} add(%x, %y)
}

%fused (p0: bf16[6,8,4], p1: s32[]) -> bf16[8,4] {
  %p0 = bf16[6,8,4]{2,1,0:T(8,128)(2,1)} parameter(0)
  %p1 = s32[]{:T(128)} parameter(1)
  ROOT %slice = bf16[1,8,4]{2,1,0:T(8,128)(2,1)} dynamic-slice(%p0, %p1), dynamic_slice_sizes={1,8,4}
}

%condition (arguments: (s32[], f32[16,4])) -> pred[] {
  %limit = s32[]{:T(128)} constant(6)
  %arguments = (s32[]{:T(128)}, /*index=1*/f32[16,4]{1,0:T(8,128)}) parameter(0)
  %counter = s32[]{:T(128)} get-tuple-element(%arguments), index=0
  ROOT %lt = pred[]{:T(512)} compare(%counter, %limit), direction=LT, metadata={op_name="while/cond"}
}

%body (arguments: (s32[], f32[16,4])) -> (s32[], f32[16,4]) {
  %arguments.1 = (s32[]{:T(128)}, f32[16,4]{1,0:T(8,128)}) parameter(0)
  %counter.1 = s32[]{:T(128)} get-tuple-element(%arguments.1), index=0
  %x.1 = f32[16,4]{1,0:T(8,128)} get-tuple-element(%arguments.1), index=1
  %w = bf16[8,4]{1,0:T(8,128)S(1)} constant({...})
  %product = f32[16,8]{1,0:T(8,128)S(1)} convolution(%x.1, %w), dim_labels=bf_oi->bf
  %reduced = f32[16,8]{1,0:T(8,128)} all-reduce(%product), replica_groups=mesh['a'=2,'b'=4] {'b'}
  ROOT %next = (s32[]{:T(128)}, f32[16,4]{1,0:T(8,128)}) tuple(%counter.1, %x.1)
}

ENTRY %main (p: f32[16,4], q: bf16[6,8,4]) -> f32[16,4] {
  %p = f32[16,4]{1,0:T(8,128)} parameter(0)
  %q = bf16[6,8,4]{2,1,0:T(8,128)(2,1)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  %start = (s32[]{:T(128)}, f32[16,4]{1,0:T(8,128)}) tuple(%zero, %p)
  %loop = (s32[]{:T(128)}, f32[16,4]{1,0:T(8,128)}) while(%start), condition=%condition, body=%body
  %gather = (bf16[6,8,4]{2,1,0}, bf16[24,8,4]{2,1,0}) all-gather-start(%q), replica_groups=[2,4]<=[8]
  %first = bf16[8,4]{1,0:T(8,128)(2,1)S(1)} fusion(%q, %zero), kind=kLoop, calls=%fused
  %done = bf16[24,8,4]{2,1,0} all-gather-done(%gather)
  %idle = (f32[16,4]{1,0}, f32[4,4]{1,0}) reduce-scatter-start(%p), replica_groups={{0,1,2,3},{4,5,6,7}}
  %idle_done = f32[4,4]{1,0} reduce-scatter-done(%idle)
  ROOT %result = f32[16,4]{1,0:T(8,128)} get-tuple-element(%loop), index=1
}
"""


@pytest.fixture(scope="module")
def program():
    return hlo.parse(TPU)


def test_arrays_have_types_shapes_and_memory_spaces(program):
    entry = program.computations[program.entry]
    assert program.entry == "main"
    assert entry["loop"].outputs == (
        hlo.Array("s32", (), True),
        hlo.Array("f32", (16, 4), True),
    )
    assert not entry["first"].outputs[0].in_memory
    assert entry["q"].outputs[0].bytes == 6 * 8 * 4 * 2
    assert hlo.Array("pred", (5,), True).bytes == 5
    assert hlo.Array("token", (), True).bytes == 0


def test_collectives_have_kinds_sizes_groups_and_counts(program):
    reduce, gather, scatter = hlo.find_collectives(program)
    assert reduce == ("all-reduce", ("f32",), 16 * 8 * 4, 4, 6, False)
    assert reduce.sent_bytes == 6 * 16 * 8 * 4 * 2 * 3 / 4
    assert gather == ("all-gather", ("bf16",), 24 * 8 * 4 * 2, 4, 1, True)
    assert gather.sent_bytes == 24 * 8 * 4 * 2 * 3 / 4
    assert scatter == ("reduce-scatter", ("f32",), 16 * 4 * 4, 4, 1, False)


def test_flops_and_memory_traffic_include_all_iterations_of_loops(program):
    assert hlo.count_flops(program) == 6 * 2 * 16 * 8 * 4
    product, reduced = 16 * 4 * 4, 16 * 8 * 4  # arrays in the memory of the chip do not count
    fusion = 8 * 4 * 2 + 4  # the slice of one of six layers, and its index
    collectives = (6 + 24 + 6) * 8 * 4 * 2 + (2 * 16 + 4) * 4 * 4
    assert hlo.count_memory_bytes(program) == 6 * (product + reduced) + fusion + collectives


FUSED = """%all-reduce-scatter.1 (input: f32[8,4]) -> f32[2,4] {
  %input = f32[8,4]{1,0} parameter(0)
  %all-reduce = f32[8,4]{1,0} all-reduce(%input), replica_groups={{0,1,2,3}}
  %zero = u32[] constant(0)
  ROOT %part = f32[2,4]{1,0} dynamic-slice(%all-reduce, %zero, %zero), dynamic_slice_sizes={2,4}
}

%begin (input: f32[2,4]) -> f32[8,4] {
  %input.1 = f32[2,4]{1,0} parameter(0)
  ROOT %all-gather = f32[8,4]{1,0} all-gather(%input.1), replica_groups=[1,4]<=[4], chain_id="0"
}

%async_collective_fusion.1 (input: f32[2,4]) -> f32[8,4] {
  %input.2 = f32[2,4]{1,0} parameter(0)
  ROOT %all-gather.1 = f32[8,4]{1,0} all-gather(%input.2), replica_groups=[1,4]<=[4], chain_id="0"
}

ENTRY %main (x: f32[8,4]) -> f32[8,4] {
  %x = f32[8,4]{1,0} parameter(0)
  %scattered = f32[2,4]{1,0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1
  %begun = f32[8,4]{1,0} fusion(%scattered), kind=kCustom, calls=%begin
  ROOT %done = f32[8,4]{1,0} fusion(%scattered), kind=kOutput, calls=%async_collective_fusion.1
}
"""


def test_collectives_inside_fusions_are_counted_once():
    scatter, gather = hlo.find_collectives(hlo.parse(FUSED))
    assert scatter == ("reduce-scatter", ("f32",), 8 * 4 * 4, 4, 1, False)
    assert gather == ("all-gather", ("f32",), 8 * 4 * 4, 4, 1, True)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"9"}}', 9),
        ("condition=%condition, body=%body", 6),
        ("condition=%add, body=%body", None),
    ],
)
def test_trip_counts_of_loops(text, count, program):
    loop = program.computations["main"]["loop"]._replace(attributes=text)
    assert hlo.trip_count(program, loop) == count


def test_program_without_entry_is_an_error():
    with pytest.raises(ValueError, match="no ENTRY"):
        hlo.parse("HloModule nothing")


# libtpu writes products with batch axes as convolutions with dilation and padding.
CONVOLUTIONS = {
    "batched": (
        "f32[16,8,256,256] convolution(%l, %r), window={size=16x8 stride=15x7 lhs_dilate=16x8}, "
        "dim_labels=0b1f_0o1i->01bf",
        ((16, 256, 8, 64), (16, 256, 8, 64)),
        2 * 16 * 8 * 256 * 256 * 64,
    ),
    "reversed": (
        "f32[16,8,256,64] convolution(%l, %r), window={size=16x8 stride=16x8 pad=15_15x7_7 lhs_dilate=15x7 "
        "rhs_reversal=1x1}, dim_labels=0f1b_01oi->01fb",
        ((16, 64, 8, 256), (16, 8, 256, 256)),
        2 * 16 * 8 * 256 * 64 * 256,
    ),
    "heads": (
        "f32[16,256,8,64] convolution(%l, %r), window={size=1x8 pad=0_0x7_7 rhs_reversal=0x1}, "
        "dim_labels=0bf1_i1o0->0b1f",
        ((16, 256, 512, 1), (512, 8, 64, 1)),
        2 * 16 * 256 * 8 * 64 * 512,
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_flops_of_products_written_as_convolutions(name):
    line, shapes, flops = CONVOLUTIONS[name]
    operands = "".join(
        f"  %{side} = f32{list(shape)} parameter({index})\n".replace(", ", ",")
        for index, (side, shape) in enumerate(zip("lr", shapes, strict=True))
    )
    program = hlo.parse(f"ENTRY %main () -> f32[] {{\n{operands}  ROOT %c = {line}\n}}\n")
    assert hlo.count_flops(program) == flops


def compiled(function, *shapes):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return hlo.parse(jax.jit(function).lower(*arguments).compile().as_text())


def test_flops_of_a_compiled_program_are_those_of_its_products():
    def scanned(x, weights):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]

    program = compiled(jax.grad(lambda *both: scanned(*both).sum(), argnums=1), (32, 16), (5, 16, 16))
    assert hlo.count_flops(program) == 2 * 32 * 16 * 16 * (3 * 5)
    assert hlo.find_collectives(program) == []
    assert hlo.count_memory_bytes(program) > 5 * 4 * 16 * 16 * 2


COPIES = """ENTRY %main (x: f32[8,4]) -> f32[8,4] {
  %x = f32[8,4]{1,0} parameter(0)
  %copy-start = (f32[8,4]{1,0:S(1)}, f32[8,4]{1,0}, u32[]{:S(2)}) copy-start(%x)
  %copy-done = f32[8,4]{1,0:S(1)} copy-done(%copy-start)
  %slice-start = ((f32[8,4]{1,0}), f32[2,4]{1,0:S(1)}, s32[]{:S(2)}) slice-start(%x), slice={[0:2], [0:4]}
  %slice-done = f32[2,4]{1,0:S(1)} slice-done(%slice-start)
  ROOT %copy = f32[8,4]{1,0} copy(%copy-done)
}
"""


def test_copies_to_the_memory_of_the_chip_count_once():
    read, part, written = 8 * 4 * 4, 2 * 4 * 4, 8 * 4 * 4
    assert hlo.count_memory_bytes(hlo.parse(COPIES)) == read + part + written


def test_callbacks_are_host_transfers():
    def call(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), jnp.float32), x)

    looped = compiled(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: call(y), x), ())
    assert sum(run.times for run in hlo.find_host_transfers(looped)) == 3
    assert not hlo.find_host_transfers(compiled(jnp.sin, ()))


def test_flops_of_nested_loops_include_the_iterations_of_all_loops():
    def body(x, _):
        return jax.lax.scan(lambda y, _: (jnp.tanh(y @ x), None), x, length=5)[0], None

    compiled = jax.jit(lambda x: jax.lax.scan(body, x, length=3)[0]).lower(jnp.ones((4, 4))).compile()
    assert hlo.count_flops(hlo.parse(compiled.as_text())) == 3 * 5 * 2 * 4**3


@pytest.mark.parametrize("larger_first", [True, False])
def test_flops_of_a_conditional_are_those_of_its_larger_branch(larger_first):
    x = jnp.ones((8, 8))
    branches = [lambda x: jnp.tanh(x @ x @ x) @ x, lambda x: x]

    def program(choice, x):
        return jax.lax.cond(choice, *branches[:: 1 if larger_first else -1], x)

    text = jax.jit(program).lower(True, x).compile().as_text()
    assert hlo.count_flops(hlo.parse(text)) == 3 * 2 * 8**3
