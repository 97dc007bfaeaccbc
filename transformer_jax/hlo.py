"""Reads compiled programs, as XLA prints them: cycles, collectives, loops."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Instruction(NamedTuple):
    """A line of a computation."""

    name: str
    type: str
    """Of the result, an array or a tuple of them, with layouts."""
    opcode: str
    operands: tuple[str, ...]
    text: str
    """The whole line, for its attributes."""

    def called(self, *attributes: str) -> list[str]:
        """The computations that the attributes name."""
        names = "|".join(attributes)
        values = re.findall(rf"\b(?:{names})=(?:%?([\w.\-]+)|{{([^}}]*)}})", self.text)
        return [name.strip(" %") for one, many in values for name in (one or many).split(",")]


Computations = dict[str, list[Instruction]]

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?")
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call"}
"""What moves no data, or only by the instructions that it calls."""


@dataclass
class Collectives:
    """All collectives of one kind, of one device."""

    count: int = 0
    size: float = 0.0
    """Bytes of the whole arrays: of all-gather those of its result, of others those put in."""
    sent: float = 0.0
    """Bytes that a device sends, where devices stand in a ring and each sends the least."""

    def add(self, kind: str, times: int, size: int, group: int) -> None:
        """Adds a collective of `size` bytes among `group` devices that is run `times` times."""
        self.count += times
        self.size += times * size
        self.sent += times * size * _share_sent(kind, group)


@dataclass
class Schedule:
    """What a program does from its start to its end, on one device."""

    cycles: int = 0
    """Sum of the compiler's estimates for its instructions; 0 where it makes none.

    The TPU's makes none for collectives, gathers, sorts and copies ahead of use.
    """
    traffic: int = 0
    """Bytes that the instructions read from and write to the main memory, the on-chip one apart."""
    loops: int = 0
    open_loops: int = 0
    """Loops whose number of rounds depends on data."""
    collectives: dict[str, Collectives] = field(default_factory=lambda: defaultdict(Collectives))

    @property
    def sent(self) -> float:
        """Bytes that a device sends in all collectives."""
        return sum(one.sent for one in self.collectives.values())


def read_schedule(text: str, num_devices: int, open_rounds: Iterable[int]) -> Schedule:
    """Adds up a compiled program; a loop's body counts as often as the loop goes round.

    Loops that count from 0 up by 1 to a constant, as those of `jax.lax.scan` do, are known; of the
    others the n-th takes the n-th of `open_rounds`, or one. Of a conditional every branch counts.
    """
    computations, entry = parse(text)
    schedule, left = Schedule(), iter(open_rounds)

    def add(name: str, times: int) -> None:
        """Adds a computation that is run `times` times, and what it calls."""
        by_name = {instruction.name: instruction for instruction in computations[name]}
        for instruction in computations[name]:
            if cycles := re.search(r'"estimated_cycles":"(\d+)"', instruction.text):
                schedule.cycles += times * int(cycles[1])
            schedule.traffic += times * _traffic(computations, instruction, by_name)
            for kind, size, group in _collectives(computations, instruction, by_name, num_devices):
                schedule.collectives[kind].add(kind, times, size, group)
            rounds = 1
            if instruction.opcode == "while":
                known = trip_count(computations, instruction)
                rounds = next(left, 1) if known is None else known
                schedule.loops += 1
                schedule.open_loops += known is None
            for inner in _run_by(instruction):
                add(inner, times * rounds)

    add(entry, 1)
    return schedule


def parse(text: str) -> tuple[Computations, str]:
    """The instructions of every computation, and the name of the one that is run."""
    computations: Computations = {}
    current: list[Instruction] = []
    entry = ""
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif found := _INSTRUCTION.match(line):
            name, result, opcode, rest = found.groups()
            operands = re.findall(r"%([\w.\-]+)", rest.partition(")")[0])
            current.append(Instruction(name, result, opcode, tuple(operands), line))
    return computations, entry


def type_size(text: str) -> int:
    """Bytes of an array or of a tuple of arrays, of a type such as `(bf16[8,128], s32[])`."""
    return sum(_array_size(dtype, dims) for dtype, dims, _ in _ARRAY.findall(text))


def hbm_size(text: str) -> int:
    """The same, without what lies in a TPU's on-chip memory, by its layout's space S(n)."""
    return sum(
        _array_size(dtype, dims)
        for dtype, dims, layout in _ARRAY.findall(text)
        if "S(" not in layout
    )


def _array_size(dtype: str, dims: str) -> int:
    return math.ceil(_bits(dtype) * math.prod(int(n) for n in dims.split(",") if n) / 8)


def _bits(dtype: str) -> int:
    digits = re.search(r"\d+", dtype)
    return int(digits[0]) if digits else 8 * (dtype == "pred")


def _traffic(
    computations: Computations, instruction: Instruction, by_name: dict[str, Instruction]
) -> int:
    """Bytes that an instruction reads from and writes to the main memory."""
    opcode = instruction.opcode
    if opcode in _FREE:
        return 0
    # The operand of an end is the start's, and the result of a start is the end's.
    operands = () if opcode.endswith("-done") else instruction.operands
    sizes = [hbm_size(by_name[one].type) if one in by_name else 0 for one in operands]
    result = 0 if opcode.endswith("-start") else hbm_size(instruction.type)
    if opcode != "fusion":
        inputs = dict(zip(operands, sizes, strict=True))
        return result + sum(_read([instruction], one, size) for one, size in inputs.items())
    body = computations[instruction.called("calls")[0]]
    parameters = {
        int(number[1]): one.name
        for one in body
        if (number := re.search(r" parameter\((\d+)\)", one.text))
    }
    if body[-1].opcode == "dynamic-update-slice":  # written in its place
        update = {one.name: one.type for one in body}[body[-1].operands[1]]
        result = min(result, type_size(update))
    for number, size in enumerate(sizes):
        name = parameters[number]
        result += _read([one for one in body if name in one.operands], name, size)
    return result


def _read(users: list[Instruction], name: str, size: int) -> int:
    """Bytes read of an operand of `size` bytes: only parts of it, where only these are used."""
    parts = 0
    for user in users:
        if not user.operands or user.operands[0] != name:
            return size
        if user.opcode in ("slice", "dynamic-slice", "gather"):
            parts += type_size(user.type)
        elif user.opcode != "dynamic-update-slice":
            return size
    return min(size, parts)


def _run_by(instruction: Instruction) -> list[str]:
    """The computations whose instructions are scheduled as an instruction's parts."""
    if instruction.opcode == "while":
        return instruction.called("condition", "body")
    if instruction.opcode in ("call", "async-start"):
        return instruction.called("to_apply", "calls")
    if instruction.opcode == "conditional":
        branches = "branch_computations", "true_computation", "false_computation"
        return instruction.called(*branches)
    return []


def trip_count(computations: Computations, loop: Instruction) -> int | None:
    """How often a loop goes round; None where that depends on data."""
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.text):
        return int(known[1])
    # TPU programs do not say it, but have the condition `compare(counter, constant)`.
    condition = computations[loop.called("condition")[0]]
    constants = {
        one.name: int(value[1])
        for one in condition
        if one.opcode == "constant" and (value := re.search(r"constant\((-?\d+)\)", one.text))
    }
    root = condition[-1]
    if root.opcode != "compare" or "direction=LT" not in root.text:
        return None
    return constants.get(root.operands[1])


def _collectives(
    computations: Computations,
    instruction: Instruction,
    by_name: dict[str, Instruction],
    num_devices: int,
) -> list[tuple[str, int, int]]:
    """The collectives of an instruction, as (kind, bytes of the whole array, devices)."""
    if instruction.opcode == "fusion":
        return _fused_collectives(computations, instruction, num_devices)
    # Of a start the result holds buffers, too; that of the end is the collective's own.
    kind = instruction.opcode.removesuffix("-done")
    if kind not in COLLECTIVES:
        return []
    start = instruction
    if instruction.opcode.endswith("-done"):
        start = by_name[instruction.operands[0]]
    group = _group_size(start.text, num_devices)
    size = type_size(instruction.type) * (group if kind == "reduce-scatter" else 1)
    return [(kind, size, group)]


def _fused_collectives(
    computations: Computations, fusion: Instruction, num_devices: int
) -> list[tuple[str, int, int]]:
    """The collectives that the TPU compiler has fused with other work."""
    name = fusion.called("calls")[0]
    body = computations[name]
    by_name = {instruction.name: instruction for instruction in body}
    found: list[tuple[str, int, int]] = []
    for instruction in body:
        inner = _collectives(computations, instruction, by_name, num_devices)
        if "async_collective_fusion_config" in instruction.text:
            # One collective in slices: it stands in its start, its end, and all that it hides
            # behind.
            starts = any('"AsyncCollectiveStart"' in other.text for other in body)
            inner = inner if starts else []
        if name.startswith("all-reduce-scatter"):
            # Only its part of the sum is left to each device.
            inner = [("reduce-scatter", size, group) for _, size, group in inner]
        found += inner
    return found


def _group_size(text: str, num_devices: int) -> int:
    """Devices that take part in a collective together."""
    if found := re.search(r"replica_groups=\[\d+,(\d+)\]<=", text):
        return int(found[1])
    if found := re.search(r"replica_groups=mesh\[([^\]]*)\] ?\{([^}]*)\}", text):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", found[2]))
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
        return found[1].count(",") + 1
    return num_devices


def _share_sent(kind: str, group: int) -> float:
    """Part of a collective's bytes that each device of a ring of `group` sends."""
    if kind == "all-reduce":
        return 2 * (group - 1) / group
    if kind in ("all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"):
        return (group - 1) / group
    return 1.0
