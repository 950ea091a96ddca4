"""HLO analysis: counts the matrix products, memory traffic and collectives of a compiled program per device.

`jax.stages.Compiled.as_text()` returns XLA's optimised HLO in execution order. XLA's cost analysis counts the
body of a loop once. This module counts each instruction as often as it runs.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
FUSED_SCATTER = "all-reduce-scatter"  # prefix of a TPU's fusion of an all-reduce and a slice of its result
HOST_TRANSFERS = ("infeed", "outfeed", "send", "recv", "send-done", "recv-done")
HOST_CALLS = ("callback", "MoveToHost", "MoveToDevice")  # in the target of a custom call
FREE = {  # these move no data, or the instructions that they call are counted instead
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call"),
    *("after-all", "partition-id", "replica-id", "opt-barrier", "custom-call", "iota"),
}
PARTIAL_READS = ("dynamic-slice", "slice", "gather")  # these read only as many bytes as they return
COMPUTE = ("fusion", "dot", "convolution", "while", "custom-call")

_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([\d,]*)\](?:\{([^{}]*)\})?")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.\-]+)")
_MESH_AXIS = re.compile(r"'(\w+)'=(\d+)")


class Array(NamedTuple):
    """An array of an instruction: dtype in XLA's notation, shape, and whether it is in main memory."""

    dtype: str
    shape: tuple[int, ...]
    in_memory: bool

    @property
    def bytes(self) -> int:
        """Size in bytes without padding. Tokens of XLA have no data and size 0."""
        bits = re.search(r"\d+", self.dtype)
        width = int(bits[0]) if bits else 8 if self.dtype == "pred" else 0
        return math.prod(self.shape) * width // 8


class Instruction(NamedTuple):
    """One line of a computation.

    Attributes:
      name, opcode: name and opcode in the text.
      outputs: the output arrays. A tuple has several.
      operands: names of instructions of the same computation.
      attributes: the text after the operands.
      is_root: whether the instruction is the result of the computation.
    """

    name: str
    opcode: str
    outputs: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    is_root: bool


Computation = dict[str, Instruction]


class Program(NamedTuple):
    """All computations by name, and the name of the entry computation."""

    computations: dict[str, Computation]
    entry: str


class Run(NamedTuple):
    """An instruction that runs, with its context.

    Attributes:
      instruction: an instruction of `computation`.
      computation: the computation that contains the instruction.
      where: name of the computation.
      times: number of executions in a run of the program. Loops of unknown length count once.
      fused: whether the instruction is inside a fusion. Intermediate results of a fusion are not in memory.
    """

    instruction: Instruction
    computation: Computation
    where: str
    times: int
    fused: bool


class Collective(NamedTuple):
    """A collective operation.

    Attributes:
      kind: an element of `COLLECTIVES`.
      dtypes: dtypes of its arrays.
      bytes: bytes of the inputs or of the outputs, whichever is larger, of one execution on one device.
      group: number of devices that take part.
      times: number of executions in a run of the program.
      overlaps: whether computation runs between its start and its end.
    """

    kind: str
    dtypes: tuple[str, ...]
    bytes: int
    group: int
    times: int
    overlaps: bool

    @property
    def total_bytes(self) -> int:
        """Bytes of all executions."""
        return self.bytes * self.times

    @property
    def sent_bytes(self) -> float:
        """Bytes that a device sends in all executions with the best algorithms for rings and tori."""
        share = (self.group - 1) / self.group
        factor = {"all-reduce": 2 * share, "collective-permute": 1.0}.get(self.kind, share)
        return factor * self.total_bytes


def parse(text: str) -> Program:
    """Parses the text of `jax.stages.Compiled.as_text()`.

    Raises:
      ValueError: if the text has no entry computation.
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
        raise ValueError("Expected the text of a compiled program, got a text with no ENTRY computation.")
    return Program(computations, entry)


def executed(program: Program) -> Iterator[Run]:
    """Yields a `Run` for each instruction that runs, including the instructions of called computations.

    The instructions of a loop's body are yielded once, and `Run.times` counts the iterations. The condition
    of a loop is left out. For a conditional, assumes the branch with the most instructions.
    """

    def walk(name: str, times: int, fused: bool) -> Iterator[Run]:
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
    """Returns the number of iterations of a while loop, or None if it is unknown.

    The text for a TPU does not contain the number. There, a loop of `jax.lax.scan` counts from 0 to the only
    integer constant of its condition.
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
    """Returns all collectives of a run of the program in order. A start and its done are one collective."""
    found: list[Collective] = []
    chains: dict[tuple[str, str], int] = {}
    for run in executed(program):
        kind = run.instruction.opcode.removesuffix("-start")
        if kind not in COLLECTIVES:
            continue
        # On a TPU, several fusions can contain parts of the same collective next to matrix products.
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
    """Returns the instructions that exchange data with the host during the program."""
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
    """Counts the operations of all matrix products of one device. A multiply-add counts as two."""
    count = {"dot": _dot_flops, "convolution": _convolution_flops}
    return sum(
        times * count[instruction.opcode](instruction, computation)
        for instruction, computation, _, times, _ in executed(program)
        if instruction.opcode in count
    )


def count_memory_bytes(program: Program) -> int:
    """Counts the bytes that one device reads from and writes to its main memory, without padding.

    Arrays in the memory of the chip (with a layout S(1)) do not count.
    """
    return sum(
        run.times * _memory_bytes(program, run.instruction, run.computation)
        for run in executed(program)
        if not run.fused
    )


def _parse_instruction(name: str, text: str, is_root: bool) -> Instruction:
    shape, rest = _split_balanced(text) if text.startswith("(") else text.split(" ", 1)
    opcode, _, rest = rest.strip().partition("(")
    operands, attributes = _split_balanced("(" + rest)
    if opcode == "constant":  # constants have their value in the place of the operands
        operands, attributes = "", rest
    return Instruction(
        name, opcode, tuple(_parse_arrays(shape)), tuple(_NAME.findall(operands)), attributes, is_root
    )


def _split_balanced(text: str) -> tuple[str, str]:
    """Splits a text that begins with a parenthesis after its closing parenthesis."""
    depth = 0
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[: index + 1], text[index + 1 :]
    return text, ""


def _parse_arrays(text: str) -> Iterator[Array]:
    for dtype, shape, layout in _ARRAY.findall(text):
        yield Array(dtype, tuple(int(size) for size in shape.split(",") if size), "S(" not in layout)


def _measure_collective(kind: str, run: Run) -> Collective:
    instruction, computation = run.instruction, run.computation
    read = [array for name in instruction.operands for array in _arrays(computation, name)]
    written = instruction.outputs
    if instruction.opcode.endswith("-start") and kind != "all-reduce":
        written = written[len(read) :]  # the outputs of a start begin with its inputs
    return Collective(
        "reduce-scatter" if run.where.startswith(FUSED_SCATTER) else kind,
        tuple(sorted({array.dtype for array in read})),
        max(sum(array.bytes for array in read), sum(array.bytes for array in written)),
        _group_size(instruction.attributes),
        run.times,
        not run.fused and _overlaps(instruction, computation),
    )


def _called(program: Program, instruction: Instruction) -> list[str]:
    """Returns the names of the computations that an instruction calls."""
    names = _CALLED.findall(instruction.attributes)
    if branches := re.search(r"branch_computations=\{([^}]*)\}", instruction.attributes):
        names += [name.strip().lstrip("%") for name in branches[1].split(",")]
    return [name for name in names if name in program.computations]


def _arrays(computation: Computation, name: str) -> tuple[Array, ...]:
    """Returns the outputs of an instruction. An operand that the text does not define has no outputs."""
    return computation[name].outputs if name in computation else ()


def _group_size(attributes: str) -> int:
    """Returns the number of devices of a group.

    The text is replica_groups={{0,1},{2,3}}, =[2,2]<=[4] or =mesh['a'=4,'b'=1] {'a'}.
    """
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", attributes):
        return len(listed[1].split(","))
    if counted := re.search(r"replica_groups=\[\d+,(\d+)\]", attributes):
        return int(counted[1])
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", attributes):
        sizes = dict(_MESH_AXIS.findall(mesh[1]))
        axes = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", mesh[2])
        return math.prod(int(part or sizes[axis]) for axis, part in axes)
    return 2  # a collective-permute lists pairs of devices


def _overlaps(instruction: Instruction, computation: Computation) -> bool:
    """Returns whether computation runs between the start of a collective and its end."""
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


def _dot_flops(instruction: Instruction, computation: Computation) -> int:
    """Counts the operations of a matrix product."""
    left = _arrays(computation, instruction.operands[0])[0]
    contracted, *_ = re.findall(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
    inputs = math.prod(left.shape[int(axis)] for axis in contracted.split(",") if axis)
    return 2 * math.prod(instruction.outputs[0].shape) * inputs


def _convolution_flops(instruction: Instruction, computation: Computation) -> int:
    """Counts the operations of a convolution (a TPU's matrix product), without padding and dilation holes."""
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


def _window_positions(inputs: int, size: int, outputs: int, window: Mapping[str, str], index: int) -> int:
    """Counts the pairs of an output position and a kernel position of an axis that read an input element."""

    def option(name: str, default: int | str) -> int | str:
        return window[name].split("x")[index] if name in window else default

    stride, left_hole, hole = (int(option(name, 1)) for name in ("stride", "lhs_dilate", "rhs_dilate"))
    before = int(str(option("pad", "0_0")).split("_")[0])
    position = np.arange(outputs)[:, None] * stride + np.arange(size) * hole - before
    hits = (position >= 0) & (position <= (inputs - 1) * left_hole) & (position % left_hole == 0)
    return int(hits.sum())


def _memory_bytes(program: Program, instruction: Instruction, computation: Computation) -> int:
    """Counts the bytes that an instruction moves from and to main memory."""
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


def _fusion_bytes(fused: Computation, operands: Sequence[tuple[Array, ...]], outputs: Sequence[Array]) -> int:
    """Counts the bytes of a fusion: its operands (slices of them if only slices are used) and its outputs."""
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
