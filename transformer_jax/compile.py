"""Compiles the train step or the beam search for devices that are not there, and reads the result.

The compiler of the TPU runs on any machine; what it says of memory is what a TPU will allocate,
what it says of time is its estimate.
"""

import importlib.util
import math
import time
from collections.abc import Iterable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.sharding import Mesh

from transformer_jax import sharding
from transformer_jax.chips import Chip, chip_of, model_flops
from transformer_jax.config import Config
from transformer_jax.data.batch_plan import largest_shape, num_rows
from transformer_jax.decode import SpecialIds
from transformer_jax.decode_loop import longest_rounds
from transformer_jax.errors import UserError
from transformer_jax.hlo import Schedule, read_schedule
from transformer_jax.model.transformer import Transformer
from transformer_jax.train_step import (
    abstract_batch,
    abstract_params,
    abstract_state,
    jit_train_step,
)
from transformer_jax.translate import batch_rows, length_limit, padded_length, search

SPECIAL = SpecialIds(pad=0, bos=1, eos=2, unk=3)
"""Those of the tokenizers that `data.tokenizer` trains."""

LARGEST = {
    "v4": (16, 16, 16),
    "v5e": (16, 16),
    "v5p": (16, 20, 28),
    "v6e": (16, 16),
    "tpu7x": (16, 24, 24),
}
"""The chips of a pod. The compiler kills its process when asked for more."""


class Work(NamedTuple):
    """A program to compile, and what it is good for."""

    traced: jax.stages.Traced
    rows: int
    length: int
    """Tokens of a row, of the source and, but when translating, of the target."""
    tokens: int
    """Source and target tokens, without filler rows; of a translation those of the source."""
    model_flops: float
    """Of all devices together: see `chips.model_flops`."""
    open_rounds: tuple[int, ...]
    """Rounds to count of the loops that end when the data say so: those of the longest output."""


class Report(NamedTuple):
    """What the compiler says; sizes, FLOPs and collectives are those of one device."""

    what: str
    topology: str
    device_kind: str
    mesh: dict[str, int]
    work: Work
    memory: Any
    """XLA's CompiledMemoryStats."""
    flops: float
    """FLOPs of a run of the program, with all rounds of its loops."""
    schedule: Schedule
    seconds: float
    """Time that the compilation took."""

    @property
    def chip(self) -> Chip | None:
        return chip_of(self.device_kind)

    @property
    def num_devices(self) -> int:
        return math.prod(self.mesh.values())

    @property
    def memory_used(self) -> int:
        """Bytes; outputs that take the place of arguments are counted once."""
        memory = self.memory
        outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
        program = memory.generated_code_size_in_bytes
        return memory.argument_size_in_bytes + memory.temp_size_in_bytes + outputs + program

    @property
    def estimated_seconds(self) -> float | None:
        """The compiler's estimate of a run; None where it makes none. See `Schedule.cycles`."""
        if self.chip is None or self.chip.clock_hz is None or not self.schedule.cycles:
            return None
        return self.schedule.cycles / self.chip.clock_hz

    def utilisation(self, seconds: float) -> float:
        """Model FLOPs / (time x peak x devices)."""
        return self.work.model_flops / (seconds * self.chip.peak_flops * self.num_devices)


def compile_for(config: Config, topology: str, what: Literal["train", "decode"]) -> Report:
    """Compiles a program of an experiment for a topology: see `devices_of` for its name.

    Raises UserError where the topology is unknown, the mesh does not fit it, or the program does
    not fit the memory of its devices.
    """
    devices = devices_of(topology)
    mesh = sharding.make_mesh(config.mesh, devices)
    start = time.monotonic()
    try:
        with jax.set_mesh(mesh):
            work = {"train": trace_train, "decode": trace_decode}[what](config, mesh)
            compiled = work.traced.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise UserError(f"it does not fit {topology}: {_first_line(error)}") from None
    schedule = read_schedule(compiled.as_text(), len(devices), work.open_rounds)
    flops = compiled.cost_analysis()["flops"]
    if schedule.loops:  # the cost analysis counts their bodies once
        jaxpr = work.traced.jaxpr
        flops *= matmul_flops(jaxpr, work.open_rounds) / matmul_flops(jaxpr, None)
    return Report(
        what=what,
        topology=topology,
        device_kind=devices[0].device_kind,
        mesh=dict(mesh.shape),
        work=work,
        memory=compiled.memory_analysis(),
        flops=flops,
        schedule=schedule,
        seconds=time.monotonic() - start,
    )


def devices_of(topology: str) -> list[jax.Device]:
    """The devices of `cpu:8`, simulated in this process, or of a TPU's `v5e:4x4`, `v5p:2x2x1`.

    Raises UserError where there is no such topology, or no compiler for it.
    """
    kind, _, size = topology.partition(":")
    if kind == "cpu" and size.isdecimal() and int(size) > 0:
        return _cpu_devices(int(size))
    sizes = sorted(int(one) if one.isdecimal() else 0 for one in size.split("x"))
    largest = sorted(LARGEST.get(kind, ()))
    known = len(sizes) == len(largest) and sizes[0] > 0
    if not known or any(one > most for one, most in zip(sizes, largest, strict=True)):
        pods = ", ".join(f"{name}:{'x'.join(map(str, pod))}" for name, pod in LARGEST.items())
        raise UserError(f"--topology {topology}: it must be cpu:N, or a part of {pods}")
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            f"--topology {topology}: the compiler of the TPU is missing; "
            "pip install 'transformer-jax[tpu-compile]'"
        )
    # JAX joins the two cores of a v4 chip to one device, as the other names do by themselves.
    options = {"chip_config_name": "megacore"} if kind == "v4" else {}
    try:
        description = topologies.get_topology_desc(topology, platform="tpu", **options)
    except jax.errors.JaxRuntimeError as error:
        raise UserError(f"--topology {topology}: {_first_line(error)}") from None
    return list(description.devices)


def _cpu_devices(count: int) -> list[jax.Device]:
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        pass  # JAX is in use already, with as many devices as it has
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise UserError(f"--topology cpu:{count}: this process has {len(devices)} CPU devices")
    return devices[:count]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _model(config: Config) -> Transformer:
    tokenizer = config.tokenizer
    return Transformer(config.model, tokenizer.vocab_size, SPECIAL.bos, tokenizer.shared)


def trace_train(config: Config, mesh: Mesh) -> Work:
    """The update of the largest batch, as `train` compiles it."""
    model = _model(config)
    state = abstract_state(config, model, mesh)
    shardings = jax.tree.map(lambda x: x.sharding, state)
    multiple = sharding.num_batch_shards(mesh) * config.train.num_micro_batches
    length = config.data.max_length
    shape = largest_shape(config.data, multiple, np.array([[length, length]]))
    step = jit_train_step(config, model, shardings, mesh)
    tokens = num_rows(config.data, length) * length
    return Work(
        traced=step.trace(state, abstract_batch(shape, mesh)),
        rows=shape.rows,
        length=length,
        tokens=2 * tokens,
        model_flops=model_flops(
            config.model, config.tokenizer.vocab_size, tokens, tokens, length, length
        ),
        open_rounds=(),
    )


def trace_decode(config: Config, mesh: Mesh) -> Work:
    """The beam search for a full batch of sources as long as `data.max_length`."""
    model = _model(config)
    length = padded_length(min(config.data.max_length, config.decode.max_source_length))
    num_shards = sharding.num_batch_shards(mesh)
    rows = batch_rows(config.decode, length, config.decode.tokens_per_batch, num_shards)
    steps = length_limit(config.decode, config.model.longest, length)
    where = sharding.batch_sharding(mesh)

    def rows_of(tokens: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, tokens), jnp.int32, sharding=where)

    find = partial(search, (model,), config.decode, SPECIAL, num_shards=num_shards)
    arguments = rows_of(length), rows_of(length), rows_of(1)
    return Work(
        traced=jax.jit(find).trace((abstract_params(model, mesh),), *arguments),
        rows=rows,
        length=length,
        tokens=rows * length,
        model_flops=model_flops(
            config.model,
            config.tokenizer.vocab_size,
            rows * length,
            rows * config.decode.beam_size * steps,
            length,
            steps,
            training=False,
        ),
        open_rounds=tuple(longest_rounds(steps, rows, num_shards)),
    )


def matmul_flops(jaxpr: ClosedJaxpr | Jaxpr, open_rounds: Iterable[int] | None) -> float:
    """FLOPs of the matrix products of a traced program, on all devices together.

    The body of a loop counts as often as it is run, where that depends on data as the next of
    `open_rounds` says, or once; without these, every body counts once.
    """
    next_rounds = None if open_rounds is None else iter(open_rounds)
    jaxpr = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, result = equation.invars[0].aval, equation.outvars[0].aval
            total += 2 * result.size * math.prod(left.shape[dim] for dim in contracted)
        times = 1
        if next_rounds is not None and equation.primitive.name == "scan":
            times = equation.params["length"]
        elif next_rounds is not None and equation.primitive.name == "while":
            times = next(next_rounds, 1)
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if isinstance(inner, ClosedJaxpr | Jaxpr):
                    total += times * matmul_flops(inner, next_rounds)
    return total


def to_json(report: Report) -> dict[str, Any]:
    """The report as numbers in SI units; what the compiler does not say is left out."""
    memory, work, schedule = report.memory, report.work, report.schedule
    result: dict[str, Any] = {
        "what": report.what,
        "topology": report.topology,
        "device_kind": report.device_kind,
        "mesh": report.mesh,
        "rows": work.rows,
        "length": work.length,
        "tokens": work.tokens,
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "output_bytes_in_arguments": memory.alias_size_in_bytes,
        "program_bytes": memory.generated_code_size_in_bytes,
        "memory_bytes": report.memory_used,
        "flops": report.flops,
        "model_flops": work.model_flops / report.num_devices,
        "memory_traffic_bytes": schedule.traffic,
        "collectives": {
            kind: {"count": one.count, "bytes": one.size, "bytes_sent": one.sent}
            for kind, one in sorted(schedule.collectives.items())
        },
        "compile_seconds": round(report.seconds, 1),
    }
    if report.chip is not None:
        result |= {
            "memory_capacity_bytes": report.chip.hbm_bytes,
            "bound_flops_seconds": report.flops / report.chip.peak_flops,
            "bound_memory_seconds": schedule.traffic / report.chip.hbm_bandwidth,
            "bound_links_seconds": schedule.sent / report.chip.link_bandwidth,
        }
    if (seconds := report.estimated_seconds) is not None:
        exposed = seconds + result["bound_links_seconds"]
        result |= {
            "estimated_cycles": schedule.cycles,
            "estimated_seconds": seconds,
            "estimated_utilisation": report.utilisation(seconds),
            "estimated_utilisation_links_apart": report.utilisation(exposed),
            "estimated_tokens_per_second": work.tokens / seconds,
        }
    return result


def describe(report: Report) -> list[str]:
    """The report for a person, a line each."""
    numbers, work, chip = to_json(report), report.work, report.chip
    mesh = " x ".join(f"{name} {size}" for name, size in report.mesh.items())
    targets = f" + {work.length} target" if report.what == "train" else ""
    capacity = "" if chip is None else f" of {chip.hbm_bytes / 2**30:.0f}"
    share = "" if chip is None else f" ({report.memory_used / chip.hbm_bytes:.0%})"
    parts = [("arguments", "argument"), ("temporaries", "temporary"), ("outputs", "output")]
    sizes = [f"{name} {numbers[f'{key}_bytes'] / 2**30:.2f}" for name, key in parts]
    in_place = numbers["output_bytes_in_arguments"] / 2**30
    return [
        f"{report.what} on {report.topology}: {report.num_devices} devices, "
        f"{report.device_kind}, mesh {mesh}",
        f"batch: {work.rows} rows of {work.length} source{targets} tokens; "
        f"{work.tokens:,} tokens without filler rows",
        f"memory a device, GiB: {', '.join(sizes)} ({in_place:.2f} in place of arguments), "
        f"program {numbers['program_bytes'] / 2**30:.2f}; "
        f"total {report.memory_used / 2**30:.2f}{capacity}{share}",
        f"FLOPs a device: {_si(report.flops)} by the compiler's count, "
        f"{_si(numbers['model_flops'])} of the model (its matrix products and their gradients)",
        *_describe_loops(report),
        *_describe_time(report, numbers),
        "collectives of a device: " + (_describe_collectives(report.schedule) or "none"),
        f"compiled in {report.seconds:.0f} s",
    ]


def _describe_loops(report: Report) -> list[str]:
    if not report.schedule.open_loops:
        return []
    rounds = f"{sum(report.work.open_rounds)} rounds, those of the longest output"
    return [f"loops: those that end when the data say so are counted with {rounds}"]


def _describe_time(report: Report, numbers: dict[str, Any]) -> list[str]:
    chip = report.chip
    if chip is None:
        return [f"time: no estimate for devices of the kind {report.device_kind!r}"]
    bounds = (
        f"at full speed: {_ms(numbers['bound_flops_seconds'])} for the FLOPs at "
        f"{_si(chip.peak_flops)}FLOP/s, {_ms(numbers['bound_memory_seconds'])} for the traffic of "
        f"memory at {_si(chip.hbm_bandwidth)}B/s, {_ms(numbers['bound_links_seconds'])} for the "
        f"bytes sent at {_si(chip.link_bandwidth)}B/s"
    )
    seconds = report.estimated_seconds
    if seconds is None:
        return [bounds]
    hidden, exposed = (numbers[f"estimated_utilisation{end}"] for end in ("", "_links_apart"))
    return [
        f"time, the compiler's estimate: {_ms(seconds)}, collectives, gathers and sorts apart "
        f"({report.schedule.cycles:,} cycles at {chip.clock_hz / 1e9:.2f} GHz)",
        bounds,
        "model FLOPs utilisation by that estimate, model FLOPs / (time x peak): "
        f"{hidden:.1%}; {exposed:.1%} where no collective is hidden behind other work",
        f"tokens/s by that estimate: {numbers['estimated_tokens_per_second']:,.0f}",
    ]


def _describe_collectives(schedule: Schedule) -> str:
    return ", ".join(
        f"{one.count} {kind} of {_si(one.size)}B ({_si(one.sent)}B sent)"
        for kind, one in sorted(schedule.collectives.items())
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _si(value: float) -> str:
    """1.23 G for 1.23e9."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "
