"""Compiling for devices that are not there. What needs the TPU's compiler is skipped without it."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import builders
import jax
import jax.numpy as jnp
import pytest

from transformer_jax import compile as compiling
from transformer_jax.config import Config
from transformer_jax.data.batch_plan import num_rows
from transformer_jax.errors import UserError
from transformer_jax.train_step import abstract_state, init_state

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="the compiler of the TPU is not installed: pip install -e '.[tpu-compile]'",
)

CHANGES = {"data.tokens_per_update": 512}


@pytest.fixture(scope="module", autouse=True)
def devices_of_tests() -> None:
    """JAX is in use before a test asks for a number of devices, which is then not changed."""
    assert jax.device_count() == 8


@pytest.fixture
def config(tiny_config: Callable[..., Config], tmp_path: Path) -> Config:
    return tiny_config(tmp_path, CHANGES)


@pytest.mark.parametrize(
    "name",
    ["", "cpu", "cpu:0", "v5e", "v5e:4", "v5e:4x-4", "v5e:100x4", "v5p:2x2", "v9:2x2", "x:2"],
)
def test_an_unknown_topology_is_an_error(name: str) -> None:
    with pytest.raises(UserError, match=r"--topology .*v5p:16x20x28"):
        compiling.devices_of(name)


def test_without_the_compiler_of_the_tpu_its_extra_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"v5e:4x4: .*'transformer-jax\[tpu-compile\]'"):
        compiling.devices_of("v5e:4x4")


def test_more_cpu_devices_than_the_process_has_are_an_error() -> None:
    assert compiling.devices_of("cpu:2") == jax.devices()[:2]
    with pytest.raises(UserError, match="has 8 CPU devices"):
        compiling.devices_of("cpu:9")


def test_a_mesh_that_does_not_fit_is_an_error(tiny_config: Callable[..., Config]) -> None:
    config = tiny_config(Path("run"), {"mesh.fsdp": 3})
    with pytest.raises(UserError, match="does not make 4 devices"):
        compiling.compile_for(config, "cpu:4", "train")


def test_the_abstract_state_is_that_of_training() -> None:
    config = builders.small_config()
    model, mesh = builders.small_model(config), builders.mesh_of(data=2, fsdp=2, tensor=2)
    state, shardings = init_state(config, model, mesh)
    abstract = abstract_state(config, model, mesh)
    assert jax.tree.structure(state) == jax.tree.structure(abstract)
    for real, shape, where in zip(*map(jax.tree.leaves, (state, abstract, shardings)), strict=True):
        assert (real.shape, real.dtype) == (shape.shape, shape.dtype)
        assert shape.sharding == where
        assert real.sharding.is_equivalent_to(where, real.ndim)


def test_an_update_on_simulated_devices(config: Config) -> None:
    report = compiling.compile_for(config, "cpu:4", "train")
    numbers = compiling.to_json(report)
    length = config.data.max_length
    rows = num_rows(config.data, length)
    assert (numbers["rows"], numbers["length"]) == (rows, length)
    assert numbers["tokens"] == 2 * rows * length
    assert numbers["mesh"] == {"data": 4, "fsdp": 1, "tensor": 1}
    # The matrix products are the most of it; the state is changed where it is.
    assert numbers["model_flops"] < numbers["flops"] < 3 * numbers["model_flops"]
    assert numbers["output_bytes_in_arguments"] > 0.9 * numbers["output_bytes"]
    assert numbers["collectives"]["all-reduce"]["count"] > 0
    assert not any(name.startswith(("estimated", "bound")) for name in numbers)
    text = "\n".join(compiling.describe(report))
    assert "mesh data 4 x fsdp 1 x tensor 1" in text
    assert "no estimate" in text


def test_filler_rows_are_no_tokens(tiny_config: Callable[..., Config]) -> None:
    config = tiny_config(Path("run"), {"data.tokens_per_update": 3 * 64, "mesh.fsdp": 2})
    work = compiling.trace_train(config, builders.mesh_of(data=2, fsdp=2))
    assert (work.rows, work.tokens) == (4, 2 * 3 * 64)


@pytest.mark.parametrize("what", ["train", "decode"])
def test_two_vocabularies_have_two_matrices_and_no_more_products(
    tiny_config: Callable[..., Config], what: str
) -> None:
    """The source's matrix, in training also of Adam's two moments; rows are looked up in it."""
    trace = {"train": compiling.trace_train, "decode": compiling.trace_decode}[what]
    works = [
        trace(tiny_config(Path("run"), {"tokenizer.shared": shared}), builders.one_device())
        for shared in (True, False)
    ]
    sizes = [sum(aval.size for aval in jax.tree.leaves(work.traced.in_avals)) for work in works]
    rows, d_model = 384, 16
    assert sizes[1] - sizes[0] == rows * d_model * (3 if what == "train" else 1)
    assert works[0].model_flops == works[1].model_flops


def test_micro_batches_are_all_counted(tiny_config: Callable[..., Config]) -> None:
    """They are rounds of a loop, which XLA's cost analysis counts once."""
    reports = [
        compiling.compile_for(
            tiny_config(Path("run"), {"train.num_micro_batches": parts, **CHANGES}),
            "cpu:1",
            "train",
        )
        for parts in (1, 4)
    ]
    assert reports[0].schedule.loops < reports[1].schedule.loops
    assert reports[1].flops == pytest.approx(reports[0].flops, rel=0.25)
    assert reports[1].work.model_flops == reports[0].work.model_flops


def test_a_search_on_simulated_devices(config: Config) -> None:
    report = compiling.compile_for(config, "cpu:2", "decode")
    steps = 64 + config.decode.max_extra_length
    rows = config.decode.tokens_per_batch // 64
    assert (report.work.rows, report.work.length) == (rows, 64)
    assert sum(report.work.open_rounds) == steps - 1  # the first is before the loops
    assert report.schedule.open_loops == len(report.work.open_rounds)
    assert f"{steps - 1} rounds" in "\n".join(compiling.describe(report))
    assert report.flops * 2 > report.work.model_flops


def test_products_in_loops_count_as_often_as_they_are_run() -> None:
    x = jnp.ones((4, 4))

    def scan(x):
        return jax.lax.scan(lambda y, _: (y @ x, None), x @ x, length=5)[0]

    def search(x):
        return jax.lax.while_loop(lambda y: jnp.sum(y) < 3, lambda y: jnp.tanh(scan(y)), x)

    product = 2 * 4**3
    assert compiling.matmul_flops(jax.make_jaxpr(scan)(x), []) == 6 * product
    assert compiling.matmul_flops(jax.make_jaxpr(scan)(x), None) == 2 * product
    assert compiling.matmul_flops(jax.make_jaxpr(jax.jit(search))(x), [7]) == 7 * 6 * product


def test_a_device_with_limits_has_bounds(config: Config) -> None:
    report = compiling.compile_for(config, "cpu:1", "train")._replace(device_kind="TPU v5 lite")
    report.schedule.cycles = 3_000_000
    numbers = compiling.to_json(report)
    assert numbers["estimated_seconds"] == 2e-3
    assert numbers["estimated_tokens_per_second"] == report.work.tokens / 2e-3
    assert numbers["estimated_utilisation"] == report.work.model_flops / (2e-3 * 197e12)
    assert numbers["bound_flops_seconds"] == report.flops / 197e12
    assert numbers["bound_memory_seconds"] == report.schedule.traffic / 819e9
    text = "\n".join(compiling.describe(report))
    assert "the compiler's estimate: 2 ms" in text
    assert "3,000,000 cycles at 1.50 GHz" in text


@pytest.fixture
def compile_cli(
    run_cli: Callable, tiny_experiment: Callable[..., str], tmp_path: Path
) -> Callable[..., tuple[int, dict, str]]:
    """Runs `compile`; gives its exit status, its JSON, and what it says to a person."""
    experiment = tiny_experiment(tmp_path, CHANGES)

    def run(*options: str) -> tuple[int, dict, str]:
        process = run_cli("compile", experiment, *options)
        numbers = json.loads(process.stdout) if process.stdout else {}
        return process.returncode, numbers, process.stderr.decode()

    return run


def test_the_command_line_simulates_devices(compile_cli: Callable) -> None:
    status, numbers, text = compile_cli("--topology", "cpu:4", "--mesh.fsdp", "2")
    assert status == 0, text
    assert numbers["mesh"] == {"data": 2, "fsdp": 2, "tensor": 1}
    assert "memory a device" in text


def test_a_search_is_compiled_for_the_mesh_of_translate(
    run_cli: Callable, tiny_experiment: Callable[..., str], tmp_path: Path
) -> None:
    """Not for that of the experiment, which is how to train."""
    experiment = tiny_experiment(tmp_path, {"mesh.fsdp": 2})
    command = "compile", experiment, "--topology", "cpu:2"
    used = json.loads(run_cli(*command, "--what", "decode").stdout)
    assert used["mesh"] == {"data": 2, "fsdp": 1, "tensor": 1}
    given = json.loads(run_cli(*command, "--what", "decode", "--mesh.tensor", "2").stdout)
    assert given["mesh"] == {"data": 1, "fsdp": 1, "tensor": 2}


def test_the_command_line_wants_a_topology(compile_cli: Callable) -> None:
    status, _, text = compile_cli()
    assert status == 2
    assert text == "transformer-jax: give --topology, such as v5e:4x4, v5p:2x2x1 or cpu:8\n"


@needs_libtpu
def test_an_update_by_the_compiler_of_the_tpu(compile_cli: Callable) -> None:
    status, numbers, text = compile_cli("--topology", "v5e:2x2", "--model.dtype", "bfloat16")
    assert status == 0, text
    assert numbers["device_kind"] == "TPU v5 lite"
    assert 0 < numbers["memory_bytes"] < numbers["memory_capacity_bytes"]
    assert numbers["estimated_seconds"] > numbers["bound_flops_seconds"] > 0
    assert 0 < numbers["estimated_utilisation"] < 1
    assert numbers["collectives"]["all-reduce"]["count"] > 0
    assert "the compiler's estimate" in text


@needs_libtpu
def test_axes_of_the_mesh_may_share_one_of_the_torus(compile_cli: Callable) -> None:
    """16 x 4 on 8 x 8 chips, which jax.make_mesh refuses on this kind."""
    mesh = "--mesh.data", "16", "--mesh.fsdp", "4"
    status, numbers, text = compile_cli("--topology", "v6e:8x8", *mesh)
    assert status == 0, text
    assert numbers["mesh"] == {"data": 16, "fsdp": 4, "tensor": 1}


@needs_libtpu
def test_a_search_by_the_compiler_of_the_tpu(compile_cli: Callable) -> None:
    status, numbers, text = compile_cli("--topology", "v4:2x2x1", "--what", "decode")
    assert status == 0, text
    assert numbers["mesh"]["data"] == 4  # one device for each chip
    assert numbers["estimated_seconds"] > 0


@needs_libtpu
def test_a_topology_that_the_compiler_refuses_is_an_error(compile_cli: Callable) -> None:
    status, _, text = compile_cli("--topology", "v5e:3x5")
    assert status == 2
    assert text.startswith("transformer-jax: --topology v5e:3x5: ")
    assert text.count("\n") == 1


@needs_libtpu
def test_what_does_not_fit_the_memory_is_an_error(compile_cli: Callable) -> None:
    large = ("--data.tokens-per-update", "4194304", "--tokenizer.vocab-size", "37000")
    status, _, text = compile_cli("--topology", "v5e:2x2", *large)
    assert status == 2
    assert text.startswith("transformer-jax: it does not fit v5e:2x2: RESOURCE_EXHAUSTED")
