"""The benchmark of a GPU, with tiny sizes on a CPU, as its shell script starts it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "experiments/benchmarks/gpu_check.sh"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable, "JAX_PLATFORMS": "cpu"}
    environment.pop("XLA_FLAGS", None)
    command = ["bash", str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def all_positive(row: dict[str, object], *names: str) -> bool:
    return all(row[name] > 0 for name in names)


@pytest.mark.slow
def test_the_gpu_check_runs_with_tiny_sizes(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    done = run("--tiny", "--output", str(output))
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text(encoding="utf-8"))
    assert result["tiny"] is True
    assert result["device"] == {"platform": "cpu", "kind": "cpu"}
    assert all_positive(result, "seconds")

    assert [row["dtype"] for row in result["parity"]] == ["float32", "bfloat16", "bfloat16"]
    for row in result["parity"]:
        assert row["passed"]
        for name in ("loss", "gradient"):
            assert 0 <= row[f"{name}_error"] <= row[f"{name}_tolerance"]

    updates = [(row["model"], row["tokens_per_update"]) for row in result["training"]]
    assert updates == [(m, t) for m in ("base", "big") for t in (64, 64, 256)]
    for row in result["training"]:
        assert all_positive(row, "seconds", "tokens_per_second", "memory_bytes")
        assert row["tokens_per_second"] == pytest.approx(
            2 * row["tokens_per_update"] / row["seconds"]
        )
        assert (row["attention"], row["num_micro_batches"]) == ("xla", 1)
        assert row["utilisation"] is None, "the peak of a CPU is not known"

    assert [row["model"] for row in result["attention"]] == ["base", "big"]
    assert all(all_positive(row, "xla_seconds_ratio") for row in result["attention"])

    search = result["beam_search"]
    assert (search["beam_size"], search["sentences"], search["steps"]) == (4, 4, 8)
    assert all_positive(search, "seconds", "sentences_per_second", "tokens_per_second")
    assert len(done.stdout.splitlines()) == 1 + 3 + 6 + 2 + 1, "the table, a line each"


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = run("--output", str(tmp_path / "result.json"))
    assert done.returncode == 2
    assert done.stderr == "gpu_check: the first device is 'cpu', no GPU: give --tiny\n"
    assert list(tmp_path.iterdir()) == []


def test_the_benchmark_of_the_loader_runs(tmp_path: Path) -> None:
    script = SCRIPT.with_name("loader.py")
    sides = [Path(__file__).parent / f"data/base/train.{language}" for language in ("en", "de")]
    options = ["--pairs", "5000", "--vocab-size", "400", "--json", tmp_path / "result.json"]
    command = [sys.executable, script, *sides, *options]
    subprocess.run(list(map(str, command)), check=True, timeout=120)
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert result["store"]["pairs"] == 300
    assert result["large"]["pairs"] == 5_000
    for name in ("packed", "bucketed"):
        assert 0.5 < result[name]["share_of_real_tokens"] <= 1
        assert result[name]["target_tokens_per_second"] > 0


@pytest.mark.slow
def test_the_benchmark_of_lengths_runs(tmp_path: Path) -> None:
    output, plot = tmp_path / "result.json", tmp_path / "length.svg"
    sizes = ["--lengths", "16", "32", "--tokens", "64", "--repeats", "1"]
    command = [sys.executable, SCRIPT.with_name("length.py"), *sizes]
    command += ["--json", output, "--plot", plot]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "1"}
    subprocess.run(list(map(str, command)), env=environment, check=True, timeout=600)
    result = json.loads(output.read_text(encoding="utf-8"))
    assert list(result) == ["whole", "chunks", "decode"]
    for found in result.values():
        assert [row["length"] for row in found["rows"]] == [16, 32]
        assert all(all_positive(row, "seconds", "memory_bytes") for row in found["rows"])
        assert found["fit"].keys() == {"a", "b", "quadratic_from"}
    assert plot.read_text(encoding="utf-8").count("<polyline") == 6
