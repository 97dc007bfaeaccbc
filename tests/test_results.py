"""The table of a run's results."""

import json
import struct
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from transformer_jax.errors import UserError
from transformer_jax.results import add_result, find_result, read_results, steps_of
from transformer_jax.run_directory import RunDirectory


def result_of(checkpoint: str, score: float, **changes: object) -> dict[str, object]:
    return {
        "checkpoint": checkpoint,
        "test_set": "news",
        "fingerprint": "abc",
        "BLEU": score,
        "signatures": {"BLEU": "nrefs:1"},
        "beam_size": 4,
        "length_penalty": 0.6,
        "max_extra_length": 50,
        "min_length": 0,
        "max_source_length": 1024,
    } | changes


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard would show: the records are length, checksum, event, checksum."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            for value in event.summary.value:
                curves.setdefault(value.tag, []).append((event.step, value.simple_value))
    return {tag: sorted(points) for tag, points in curves.items()}


def test_a_result_takes_the_place_of_the_one_with_its_key(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path))
    assert read_results(run) == []
    kept = [
        result_of("step 10", 1.0, beam_size=1),
        result_of("step 10", 2.0, test_set="captions"),
        result_of("step 10", 3.0, fingerprint="abd"),
        result_of("average of steps 10, 20", 4.0),
        result_of("step 10", 6.0),
    ]
    for one in [result_of("step 10", 5.0), *kept]:
        add_result(run, one)
    assert read_results(run) == kept
    assert [json.loads(line) for line in run.results.read_text("utf-8").splitlines()] == kept
    assert find_result(read_results(run), result_of("step 10", 0.0)) == kept[-1]
    assert find_result(read_results(run), result_of("step 20", 0.0)) is None


def test_results_are_curves_in_tensorboard(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path))
    for step, score in ((10, 20.5), (20, 21.25)):
        add_result(run, result_of(f"step {step}", score))
    add_result(run, result_of("average of steps 10, 20", 22.0))
    add_result(run, result_of("step 20", 23.0, beam_size=1, length_penalty=1.0))
    folder = tmp_path / "tensorboard"
    assert read_scalars(folder / "beam4-alpha0.6") == {"news/BLEU": [(10, 20.5), (20, 21.25)]}
    assert read_scalars(folder / "beam4-alpha0.6-average2") == {"news/BLEU": [(20, 22.0)]}
    assert read_scalars(folder / "beam1-alpha1.0") == {"news/BLEU": [(20, 23.0)]}


def test_the_steps_of_a_result() -> None:
    assert steps_of("step 300") == [300]
    assert steps_of("average of steps 300, 400") == [300, 400]


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path))
    run.results.write_text('{"checkpoint": "step 1"}\n[1]\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"evaluations\.jsonl, line 2: no JSON object"):
        read_results(run)
