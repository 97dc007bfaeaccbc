"""Several processes for real, on one machine, by the public command line.

They are joined by `jax.distributed` and gloo's collectives. Two have two simulated devices each,
four have one. Every process compiles every program, which is most of what a job takes.
"""

import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from transformer_jax.config import DistributedConfig
from transformer_jax.distributed import check_agreement, everywhere, join, on_first
from transformer_jax.errors import UserError

pytestmark = pytest.mark.slow
Job = Callable[..., list[subprocess.Popen]]

CHANGES = {
    "model.dropout_rate": 0.1,
    "train.dev_loss_interval": 5,
    "train.dev_bleu_interval": 10,
    "train.log_interval": 1,
    "checkpoint.interval": 5,
    "data.tokens_per_update": 512,
    "decode.max_extra_length": 5,
}
ENDLESS = CHANGES | {"train.num_steps": 100_000}


@pytest.fixture
def start_job(start_cli: Callable[..., subprocess.Popen], tmp_path: Path) -> Job:
    """Starts as many processes as asked for; their standard error goes to files."""
    jobs = []

    def start(count: int, command: str, target: str, *options: str, each=None, cwd=None) -> list:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        joined = ["--distributed.enabled", "--distributed.coordinator", f"localhost:{port}"]
        joined += ["--distributed.num-processes", str(count), "--distributed.timeout", "20"]
        for number in range(count):
            own = each(number) if each else []
            process_id = ["--distributed.process-id", str(number)]
            with (tmp_path / f"{number}.err").open("w") as err:
                arguments = [command, target, *options, *joined, *process_id, *own]
                streams = {"stderr": err, "stdout": subprocess.DEVNULL}
                where = cwd(number) if cwd else None
                devices = str(4 // count)
                jobs.append(start_cli(*arguments, devices=devices, cwd=where, **streams))
        return jobs[-count:]

    yield start
    for process in jobs:
        process.kill()


def wait_for(processes: list[subprocess.Popen], seconds: float = 400) -> list[int]:
    end = time.monotonic() + seconds
    return [process.wait(timeout=max(end - time.monotonic(), 1)) for process in processes]


def losses(run: Path) -> dict[int, float]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    entries = [json.loads(line) for line in lines]
    return {entry["step"]: entry["loss"] for entry in entries if entry["split"] == "train"}


def errors(folder: Path, number: int) -> str:
    return (folder / f"{number}.err").read_text(encoding="utf-8")


def test_a_job_is_stopped_and_goes_on_with_other_processes_on_another_mesh(
    tmp_path: Path, tiny_experiment: Callable, start_job: Job, run_cli: Callable
) -> None:
    """D02, D14, D15, D27, D29: and the loss of every update is that of one process alone."""
    experiment = tiny_experiment(tmp_path, ENDLESS | {"train.dev_bleu_interval": 0})
    run = tmp_path / "run"
    job = start_job(2, "train", experiment)
    end = time.monotonic() + 120
    while not (run / "metrics.jsonl").is_file() or len(losses(run)) < 7:
        assert time.monotonic() < end and job[0].poll() is None, errors(tmp_path, 0)
        time.sleep(0.2)
    job[1].send_signal(signal.SIGTERM)  # to one of them, which is not the first
    assert wait_for(job) == [128 + signal.SIGTERM] * 2, errors(tmp_path, 0)
    stopped = max(int(path.name) for path in (run / "checkpoints").iterdir())
    assert stopped >= 7
    assert f"saved step {stopped}" in errors(tmp_path, 0)
    assert errors(tmp_path, 1).count("saved step") == 0  # the first alone speaks

    # Their searches are those of two processes, which the tests below show.
    steps = ["--train.num-steps", str(stopped + 6), "--data.test", ""]
    mesh = ["--mesh.fsdp", "2", "--mesh.tensor", "2"]
    assert wait_for(start_job(4, "train", experiment, *steps, *mesh)) == [0] * 4, errors(
        tmp_path, 0
    )
    together = losses(run)
    assert sorted(together) == list(range(1, stopped + 7))

    alone = tmp_path / "alone"
    done = run_cli("train", experiment, "--run-directory", str(alone), *steps)
    assert done.returncode == 0, done.stderr.decode()
    expected = losses(alone)
    np.testing.assert_allclose(
        [together[step] for step in sorted(expected)],
        [expected[step] for step in sorted(expected)],
        rtol=1e-3,
    )

    # The same checkpoint, translated by two processes and by one.
    outputs = [tmp_path / "two.de", tmp_path / "one.de"]
    source = ["--input", str(Path(__file__).parent / "data/base/test.en"), "--output"]
    assert wait_for(start_job(2, "translate", str(run), *source, str(outputs[0]))) == [0, 0]
    assert run_cli("translate", str(run), *source, str(outputs[1])).returncode == 0
    assert outputs[0].read_bytes() == outputs[1].read_bytes()


def test_processes_that_differ_are_stopped_before_the_first_update(
    tmp_path: Path, tiny_experiment: Callable, start_job: Job
) -> None:
    experiment = tiny_experiment(tmp_path, CHANGES)
    job = start_job(2, "train", experiment, each=lambda number: ["--train.seed", str(number)])
    assert wait_for(job) == [2, 2]
    for number in range(2):
        message = errors(tmp_path, number)
        assert "train.seed is 1 in process 1 and 0 in process 0" in message
        assert "Traceback" not in message
    assert not (tmp_path / "run").exists()


def test_processes_with_other_text_are_stopped_before_the_first_update(
    tmp_path: Path, tiny_experiment: Callable, start_job: Job
) -> None:
    """Each finds its own folder at the same relative path, and the second another dev set."""
    experiment = tiny_experiment(tmp_path, CHANGES | {"data.directory": "text"})
    for number in range(2):
        shutil.copytree(Path(__file__).parent / "data/base", tmp_path / f"{number}/text")
    valid = tmp_path / "1/text/valid.de"
    valid.write_bytes(valid.read_bytes().replace(b"die ", b"eine "))
    job = start_job(2, "train", experiment, cwd=lambda number: tmp_path / str(number))
    assert wait_for(job) == [2, 2], errors(tmp_path, 0)
    for number in range(2):
        message = errors(tmp_path, number)
        assert "the fingerprint of the validation set is " in message
        assert "in process 1 and " in message and "Traceback" not in message
    assert not (tmp_path / "run/checkpoints").exists()


def test_a_process_that_dies_ends_the_others(
    tmp_path: Path, tiny_experiment: Callable, start_job: Job
) -> None:
    experiment = tiny_experiment(tmp_path, ENDLESS)
    job = start_job(2, "train", experiment)
    end = time.monotonic() + 120
    metrics = tmp_path / "run/metrics.jsonl"
    while not metrics.is_file() or len(losses(tmp_path / "run")) < 6:
        assert time.monotonic() < end and job[0].poll() is None, errors(tmp_path, 0)
        time.sleep(0.2)
    job[1].kill()
    start = time.monotonic()
    assert wait_for(job[:1], seconds=90)[0] != 0
    assert time.monotonic() - start < 80
    # From its last checkpoint the job goes on.
    steps = ["--train.num-steps", str(max(losses(tmp_path / "run")) + 10)]
    assert wait_for(start_job(2, "train", experiment, *steps)) == [0, 0], errors(tmp_path, 0)
    (result,) = (tmp_path / "run/evaluations.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(result)["sentences"] == 29


def test_a_process_alone_agrees_with_itself() -> None:
    join(DistributedConfig())
    check_agreement({"train.seed": 1})
    done = []
    on_first(lambda: done.append(1))
    assert done == [1]

    def fail() -> None:
        raise UserError("no such file")

    with pytest.raises(UserError, match="no such file"):
        on_first(fail)
    assert everywhere(lambda: 3) == 3
    with pytest.raises(UserError, match="/nowhere: No such file"):
        everywhere(lambda: open("/nowhere", encoding="utf-8"))


@pytest.mark.parametrize(
    "given",
    [{"num_processes": 2}, {"enabled": True}, {"process_id": 1}],
)
def test_a_coordinator_without_a_job_to_join_is_refused(given: dict) -> None:
    """Every process would else train alone, and all would write to one folder."""
    with pytest.raises(UserError, match=r"distributed\.(coordinator|process_id) is "):
        DistributedConfig(coordinator="host:1", **given)


def test_processes_that_find_no_other_say_so() -> None:
    with pytest.raises(UserError, match=r"cannot join the other processes .* --distributed\."):
        join(DistributedConfig(enabled=True))
