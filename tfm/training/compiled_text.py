"""What a compiled program does, read from its text: products, memory traffic and collectives of one device.

`jax.stages.Compiled.as_text()` is XLA's optimised HLO in the order in which it runs. XLA's own cost analysis
counts the body of a loop once; here each instruction counts as often as it runs.
"""

import math
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
FUSED_SCATTER = "all-reduce-scatter"  # a TPU's fusion of the sum and the part of it that a device keeps
HOST_TRANSFERS = ("infeed", "outfeed", "send", "recv", "send-done", "recv-done")
HOST_CALLS = ("callback", "MoveToHost", "MoveToDevice")  # in the target of a custom call
FREE = {  # these move nothing: they name what is there, or what they call is counted
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call"),
    *("after-all", "partition-id", "replica-id", "opt-barrier", "custom-call", "iota"),
}
PARTIAL_READS = ("dynamic-slice", "slice", "gather")  # they read as much as they give
COMPUTE = ("fusion", "dot", "convolution", "while", "custom-call")

_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([\d,]*)\](?:\{([^{}]*)\})?")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.\-]+)")
_MESH_AXIS = re.compile(r"'(\w+)'=(\d+)")


class Array(NamedTuple):
    """One array of an instruction: dtype as XLA names it, shape, and whether it lies in the main memory."""

    dtype: str
    shape: tuple[int, ...]
    in_memory: bool

    @property
    def bytes(self) -> int:
        """Size without padding; 0 of a token, which is no data."""
        bits = re.search(r"\d+", self.dtype)
        width = int(bits[0]) if bits else 8 if self.dtype == "pred" else 0
        return math.prod(self.shape) * width // 8


class Instruction(NamedTuple):
    """One line of a computation.

    Attributes:
      name, opcode: as in the text.
      outputs: its arrays, of a tuple all of them.
      operands: names of instructions of the same computation.
      attributes: the text behind the operands.
      is_root: whether it is the computation's result.
    """

    name: str
    opcode: str
    outputs: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    is_root: bool


Computation = dict[str, Instruction]


class Program(NamedTuple):
    """Computations by name, each {name: instruction} in order, and the name of the first one to run."""

    computations: dict[str, Computation]
    entry: str


class Run(NamedTuple):
    """An instruction where it runs.

    Attributes:
      instruction: of `computation`.
      computation, where: its own, and the name of that.
      times: how often a run of the program runs it; loops of unknown length count once.
      fused: whether it is inside of a fusion, whose intermediate results never reach the memory.
    """

    instruction: Instruction
    computation: Computation
    where: str
    times: int
    fused: bool


class Collective(NamedTuple):
    """A collective operation.

    Attributes:
      kind: of `COLLECTIVES`.
      dtypes: of its arrays.
      bytes: of one run on one device: of the larger of what goes in and what comes out.
      group: devices that take part.
      times: how often it runs in a run of the program.
      overlaps: whether it runs beside computation: it has a start and a done with some in between.
    """

    kind: str
    dtypes: tuple[str, ...]
    bytes: int
    group: int
    times: int
    overlaps: bool

    @property
    def total_bytes(self) -> int:
        """Bytes of all its runs."""
        return self.bytes * self.times

    @property
    def sent_bytes(self) -> float:
        """Bytes that a device sends in all runs, by the best algorithms for rings and tori."""
        share = (self.group - 1) / self.group
        factor = {"all-reduce": 2 * share, "collective-permute": 1.0}.get(self.kind, share)
        return factor * self.total_bytes


def parse(text: str) -> Program:
    """The computations of `jax.stages.Compiled.as_text()`.

    Raises:
      ValueError: the text has no entry computation.
    """
    computations, entry, current = {}, None, {}
    for line in text.splitlines():
        if found := _INSTRUCTION.match(line):
            root, name, rest = found.groups()
            current[name] = _parse_instruction(name, rest, bool(root))
        elif found := _COMPUTATION.match(line):
            computations[found[2]] = current = {}
            entry = found[2] if found[1] else entry
    if entry is None:
        raise ValueError("expected the text of a compiled program, found no ENTRY computation")
    return Program(computations, entry)


def executed(program: Program) -> Iterator[Run]:
    """All instructions that run, with how often; of the branches of a conditional, the longest one's."""

    def walk(name, times, fused):
        computation = program.computations[name]
        for instruction in computation.values():
            yield Run(instruction, computation, name, times, fused)
            called = _called(program, instruction)
            if instruction.opcode == "while":
                count = trip_count(program, instruction) or 1
                yield from walk(called[0], times * count, fused)
            elif instruction.opcode == "conditional":
                yield from walk(max(called, key=lambda each: len(program.computations[each])), times, fused)
            elif instruction.opcode in ("call", "fusion", "async-start"):
                for each in called:
                    yield from walk(each, times, fused or instruction.opcode == "fusion")

    yield from walk(program.entry, 1, False)


def trip_count(program: Program, loop: Instruction) -> int | None:
    """How often the body of a while loop runs, or None where the text does not tell.

    A TPU's text does not say it; there the loops of `jax.lax.scan` count from 0 to the one integer constant
    of their condition.
    """
    if known := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes):
        return int(known[1])
    condition, *_ = re.findall(r"condition=%?([\w.\-]+)", loop.attributes)
    instructions = list(program.computations[condition].values())
    if not any("direction=LT" in each.attributes for each in instructions):
        return None
    limits = [each for each in instructions if each.opcode == "constant" and each.outputs[0].dtype == "s32"]
    value = re.match(r"(\d+)\)", limits[0].attributes) if len(limits) == 1 else None
    return int(value[1]) if value else None


def find_collectives(program: Program) -> list[Collective]:
    """All collectives that a run of the program makes, in order; a start and its done are one."""
    found: list[Collective] = []
    chains: dict[tuple[str, str], int] = {}
    for run in executed(program):
        kind = run.instruction.opcode.removesuffix("-start")
        if kind not in COLLECTIVES:
            continue
        # On a TPU, several fusions each carry a part of one collective beside products of their own.
        named = re.search(r'chain_id="(\d+)"', run.instruction.attributes)
        chain = named and (named[1], kind)
        if chain in chains:
            index = chains[chain]
            found[index] = found[index]._replace(overlaps=True)
            continue
        if chain:
            chains[chain] = len(found)
        found.append(_measure_collective(kind, run))
    return found


def find_host_transfers(program: Program) -> list[Run]:
    """Instructions that exchange data with the host while the program runs."""
    return [
        run
        for run in executed(program)
        if run.instruction.opcode in HOST_TRANSFERS
        or (
            run.instruction.opcode == "custom-call"
            and any(word in run.instruction.attributes for word in HOST_CALLS)
        )
    ]


def count_flops(program: Program) -> int:
    """Multiply-adds x 2 of all matrix products of one device."""
    count = {"dot": _dot_flops, "convolution": _convolution_flops}
    return sum(
        times * count[instruction.opcode](instruction, computation)
        for instruction, computation, _, times, _ in executed(program)
        if instruction.opcode in count
    )


def count_memory_bytes(program: Program) -> int:
    """Bytes that one device reads from and writes to its main memory, without padding.

    What the compiler keeps in a memory on the chip (a layout with S(1)) is not counted.
    """
    return sum(
        run.times * _memory_bytes(program, run.instruction, run.computation)
        for run in executed(program)
        if not run.fused
    )


def _parse_instruction(name, text, is_root):
    shape, rest = _split_balanced(text) if text.startswith("(") else text.split(" ", 1)
    opcode, _, rest = rest.strip().partition("(")
    operands, attributes = _split_balanced("(" + rest)
    if opcode == "constant":  # whose value stands where others have operands
        operands, attributes = "", rest
    return Instruction(
        name, opcode, tuple(_parse_arrays(shape)), tuple(_NAME.findall(operands)), attributes, is_root
    )


def _split_balanced(text):
    """Text that begins with a parenthesis -> up to the one that closes it, and what follows."""
    depth = 0
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[: index + 1], text[index + 1 :]
    return text, ""


def _parse_arrays(text: str) -> Iterator[Array]:
    for dtype, shape, layout in _ARRAY.findall(text):
        yield Array(dtype, tuple(int(size) for size in shape.split(",") if size), "S(" not in layout)


def _measure_collective(kind, run):
    instruction, computation = run.instruction, run.computation
    read = [array for name in instruction.operands for array in _arrays(computation, name)]
    written = instruction.outputs
    if instruction.opcode.endswith("-start") and kind != "all-reduce":
        written = written[len(read) :]  # what it reads comes first
    return Collective(
        "reduce-scatter" if run.where.startswith(FUSED_SCATTER) else kind,
        tuple(sorted({array.dtype for array in read})),
        max(sum(array.bytes for array in read), sum(array.bytes for array in written)),
        _group_size(instruction.attributes),
        run.times,
        not run.fused and _overlaps(instruction, computation),
    )


def _called(program, instruction):
    names = _CALLED.findall(instruction.attributes)
    if branches := re.search(r"branch_computations=\{([^}]*)\}", instruction.attributes):
        names += [name.strip().lstrip("%") for name in branches[1].split(",")]
    return [name for name in names if name in program.computations]


def _arrays(computation, name):
    return computation[name].outputs if name in computation else ()


def _group_size(attributes):
    """Devices of a group: replica_groups={{0,1},{2,3}}, =[2,2]<=[4] or =mesh['a'=4,'b'=1] {'a'}."""
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", attributes):
        return len(listed[1].split(","))
    if counted := re.search(r"replica_groups=\[\d+,(\d+)\]", attributes):
        return int(counted[1])
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", attributes):
        sizes = dict(_MESH_AXIS.findall(mesh[1]))
        axes = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", mesh[2])
        return math.prod(int(part or sizes[axis]) for axis, part in axes)
    return 2  # a permutation names pairs


def _overlaps(instruction, computation):
    if not instruction.opcode.endswith("-start"):
        return False
    done = instruction.opcode.removesuffix("start") + "done"
    order = list(computation.values())
    begin = order.index(instruction)
    for later in order[begin + 1 :]:
        if later.opcode == done and instruction.name in later.operands:
            return False
        if later.opcode in COMPUTE:
            return True
    return False


def _dot_flops(instruction, computation):
    left = _arrays(computation, instruction.operands[0])[0]
    contracted, *_ = re.findall(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
    inputs = math.prod(left.shape[int(axis)] for axis in contracted.split(",") if axis)
    return 2 * math.prod(instruction.outputs[0].shape) * inputs


def _convolution_flops(instruction, computation):
    """A TPU's products are convolutions, whose windows may hit padding and holes: these do not count."""
    attributes = instruction.attributes
    labels, *_ = re.findall(r"dim_labels=(\w+)_(\w+)->(\w+)", attributes)
    left, kernel = (
        dict(zip(axes, _arrays(computation, name)[0].shape, strict=True))
        for axes, name in zip(labels, instruction.operands, strict=False)
    )
    output = dict(zip(labels[2], instruction.outputs[0].shape, strict=True))
    windows = re.search(r"window=\{([^}]*)\}", attributes)
    window = dict(re.findall(r"(\w+)=(\S+)", windows[1])) if windows else {}
    positions = 1
    for index, axis in enumerate(sorted(axis for axis in output if axis.isdigit())):
        positions *= _window_positions(left[axis], kernel[axis], output[axis], window, index)
    groups = re.search(r"batch_group_count=(\d+)", attributes)
    products = output["b"] * output["f"] * kernel["i"] * positions
    return 2 * products // (int(groups[1]) if groups else 1)


def _window_positions(inputs, size, outputs, window, index):
    """Pairs of an output and a kernel position of one axis that meet an input."""

    def option(name, default):
        return window[name].split("x")[index] if name in window else default

    stride, left_hole, hole = (int(option(name, 1)) for name in ("stride", "lhs_dilate", "rhs_dilate"))
    before = int(str(option("pad", "0_0")).split("_")[0])
    position = np.arange(outputs)[:, None] * stride + np.arange(size) * hole - before
    hits = (position >= 0) & (position <= (inputs - 1) * left_hole) & (position % left_hole == 0)
    return int(hits.sum())


def _memory_bytes(program, instruction, computation):
    opcode, outputs = instruction.opcode, instruction.outputs
    operands = [_arrays(computation, name) for name in instruction.operands]
    if opcode in FREE or opcode.endswith("-done"):
        return 0
    if opcode in ("copy-start", "slice-start"):  # (to, from, ...) and ((from), to, ...)
        to = outputs[1 if opcode == "slice-start" else 0]
        return to.bytes * (to.in_memory + any(array.in_memory for array in operands[0]))
    if opcode == "fusion" and (called := _called(program, instruction)):
        return _fusion_bytes(program.computations[called[0]], operands, outputs)
    if opcode in PARTIAL_READS:
        return _in_memory(outputs) + sum(map(_in_memory, [outputs, *operands[1:]]))
    if opcode == "dynamic-update-slice":  # in place
        return 2 * _in_memory(operands[1])
    return _in_memory(outputs) + sum(map(_in_memory, operands))


def _fusion_bytes(fused, operands, outputs):
    """A fusion reads its operands, of those it only takes slices of the slices, and writes its outputs."""
    users: dict[str, list[Instruction]] = {}
    for each in fused.values():
        for name in each.operands:
            users.setdefault(name, []).append(each)
    total = 0
    for each in fused.values():
        if each.opcode != "parameter":
            continue
        index = int(each.attributes.partition(")")[0] or 0) if each.attributes[:1].isdigit() else None
        arrays = operands[index] if index is not None and index < len(operands) else each.outputs
        used = users.get(each.name, [])
        if used and all(user.opcode in PARTIAL_READS for user in used):
            total += sum(min(user.outputs[0].bytes, _in_memory(arrays)) for user in used)
        elif any(user.opcode != "dynamic-update-slice" or user.operands[0] != each.name for user in used):
            total += _in_memory(arrays)
    roots = [each for each in fused.values() if each.is_root]
    results = [fused[name] for name in roots[0].operands] if roots[0].opcode == "tuple" else roots
    for result, output in zip(results, outputs, strict=False):
        written = output.bytes
        if result.opcode == "dynamic-update-slice":
            written = _arrays(fused, result.operands[1])[0].bytes
        total += written if output.in_memory else 0
    return total


def _in_memory(arrays: Iterable[Array]) -> int:
    return sum(array.bytes for array in arrays if array.in_memory)
