"""What one process has compiled the next one reads."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_jax.compilation_cache import keep_compiled_programs

TESTS = Path(__file__).parent

# `translate` as the command line starts it, told from inside.
PROGRAM = """
import json, sys
from collections import Counter
from transformer_jax import __main__ as command_line

def main():
    import jax
    events = Counter()
    jax.monitoring.register_event_listener(lambda name, **_: events.update([name.split("/")[-1]]))
    status = original()
    print(json.dumps({"events": events, "modules": list(sys.modules)}), file=sys.stderr)
    return status

original, command_line.main = command_line.main, main
command_line.program()
"""


def test_a_second_process_compiles_nothing_anew(tmp_path: Path) -> None:
    environment = os.environ | {
        "PYTHONPATH": str(TESTS.parent),
        "XDG_CACHE_HOME": str(tmp_path),
        "JAX_NUM_CPU_DEVICES": "1",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    del environment["JAX_COMPILATION_CACHE_DIR"]
    told, translations = [], set()
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "translate", str(TESTS / "golden/run")],
            env=environment,
            input=b"874%\n",
            capture_output=True,
        )
        translations.add(done.stdout.decode())
        told.append(json.loads(done.stderr))  # nothing else is said
    first, second = (one["events"] for one in told)
    assert translations == {"874 %\n"}
    assert first["compile_requests_use_cache"] == first["cache_misses"] > 0
    assert second["compile_requests_use_cache"] == second["cache_hits"] > 0
    assert "cache_misses" not in second
    (directory,) = (tmp_path / "transformer_jax").iterdir()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    loaded = {name.partition(".")[0] for name in told[0]["modules"]}
    assert {"jax", "orbax"} <= loaded
    assert not loaded & {"tensorflow_datasets", "grain", "plotly", "tensorboardX", "sacrebleu"}


def kept(monkeypatch: pytest.MonkeyPatch, **environment: str) -> dict[str, str]:
    """What is added to an environment."""
    before = dict(environment)
    monkeypatch.setattr(os, "environ", environment)
    keep_compiled_programs()
    return {name: value for name, value in environment.items() if name not in before}


def test_the_directory_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    added = kept(monkeypatch, HOME=str(tmp_path))
    directory = tmp_path / ".cache/transformer_jax/compiled"
    assert added["JAX_COMPILATION_CACHE_DIR"] == str(directory)
    assert directory.is_dir()


@pytest.mark.parametrize("directory", ["", "/somewhere/else"])
def test_what_the_user_says_to_jax_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, directory: str
) -> None:
    assert not kept(monkeypatch, HOME=str(tmp_path), JAX_COMPILATION_CACHE_DIR=directory)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["no folder", "no permission", "no user"])
def test_where_nothing_can_be_written_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    if what == "no folder":
        (tmp_path / ".cache").write_bytes(b"")
    elif what == "no permission":
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    else:
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert not kept(monkeypatch, HOME=str(tmp_path))
