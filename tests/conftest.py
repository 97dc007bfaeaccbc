"""Fixtures that several test modules share; imported before them, so what it checks, they check."""

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import jaxtyping
import pytest

# JAX reads these variables when it is first imported. Tests compile the same few programs over
# and over, in this process and in others, and for longer than they run; some need several devices.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
CACHE = tempfile.mkdtemp(prefix="transformer_jax_tests_")
os.environ["JAX_COMPILATION_CACHE_DIR"] = CACHE
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

# Types and shapes in the signatures of what computes on arrays are checked at every call.
ARRAY_MODULES = """
model sharding loss optimizer train_step checkpoint
decode decode_sampling translate alignment scoring
""".split()
jaxtyping.install_import_hook(
    [f"transformer_jax.{name}" for name in ARRAY_MODULES], "beartype.beartype"
)

from transformer_jax.config import Config  # noqa: E402

DATA = Path(__file__).parent / "data"

TINY = {
    "data.directory": str(DATA / "base"),
    "data.dev": "valid",
    "data.max_length": 64,
    "data.tokens_per_update": 256,
    "data.max_buckets": 4,
    "tokenizer.vocab_size": 320,
    "model.num_layers": 1,
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.num_heads": 2,
    "optimizer.warmup_steps": 20,
    "train.num_steps": 12,
    "train.log_interval": 4,
    "train.dev_loss_interval": 0,
    "train.dev_bleu_interval": 0,
    "checkpoint.interval": 1_000,
}


def pytest_unconfigure() -> None:
    shutil.rmtree(CACHE, ignore_errors=True)


@pytest.fixture(scope="module")
def one_device() -> Iterator[None]:
    """Runs use the first device alone, as they do in the processes of `run_cli`."""
    import builders

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer_jax.sharding.make_mesh", lambda config: builders.one_device())
        yield


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., Config]:
    """Makes the configuration of a run that trains in seconds on the 300 pairs of data/base."""

    def make(run_directory: Path, changes: dict[str, object] | None = None) -> Config:
        sections: dict[str, dict[str, object]] = {}
        for path, value in (TINY | (changes or {})).items():
            section, name = path.split(".")
            sections.setdefault(section, {})[name] = value
        default = Config()
        changed = {
            section: dataclasses.replace(getattr(default, section), **values)
            for section, values in sections.items()
        }
        return Config(run_directory=str(run_directory), **changed)

    return make


@pytest.fixture(scope="session")
def tiny_experiment(tiny_config: Callable[..., Config]) -> Callable[..., str]:
    """Writes the experiment file of a `tiny_config` whose run is `folder`/run; gives its path."""

    def write(folder: Path, changes: dict[str, object] | None = None) -> str:
        config = tiny_config(folder / "run", changes)
        path = folder / "experiment.py"
        path.write_text(
            "from transformer_jax.config import *\n\n\n"
            f"def get_config() -> Config:\n    return {config!r}\n",
            encoding="utf-8",
        )
        return str(path)

    return write


@pytest.fixture(scope="session")
def start_cli() -> Callable[..., subprocess.Popen]:
    """Starts `python -m transformer_jax` with the arguments given, its streams piped, as bytes."""

    def start(*arguments: str, devices: str = "1", **options: object) -> subprocess.Popen:
        paths = {"PYTHONPATH": str(DATA.parents[1])}
        environment = os.environ | paths | {"JAX_NUM_CPU_DEVICES": devices}
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(
            [sys.executable, "-m", "transformer_jax", *arguments],
            **(pipes | {"env": environment} | options),
        )

    return start


@pytest.fixture(scope="session")
def run_cli(
    start_cli: Callable[..., subprocess.Popen],
) -> Callable[..., subprocess.CompletedProcess]:
    """Runs `python -m transformer_jax` to its end; what it prints comes back as bytes."""

    def run(
        *arguments: str, stdin: bytes = b"", **options: object
    ) -> subprocess.CompletedProcess[bytes]:
        process = start_cli(*arguments, **options)
        try:
            stdout, stderr = process.communicate(stdin, timeout=300)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    return run
