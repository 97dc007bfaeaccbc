"""The launch files: what they would run, by stand-ins for the programs that they start."""

import itertools
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from transformer_jax.experiment import load_experiment

ROOT = Path(__file__).parents[1]
LAUNCH = ROOT / "experiments/launch"
SHELL = sorted(LAUNCH.glob("*.sh"))
JOB_SETS = sorted(LAUNCH.glob("*.yaml"))
COMMAND = ["train", "experiments/wmt14_en_de_base.py", "--run-directory", "/disk/a run"]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of programs that write their names and arguments, one a line, into `calls`."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("gcloud", "scontrol", "python", "srun", "pkill"):
        stand_in(folder, name, "exit ${STATUS:-0}")
    return folder


def stand_in(folder: Path, name: str, then: str) -> None:
    calls = shlex.quote(str(folder / "calls"))
    (folder / name).write_text(
        f"#!/bin/bash\n(printf '%s\\n' {name} \"$@\"; echo) >> {calls}\n{then}\n", encoding="utf-8"
    )
    (folder / name).chmod(0o755)


def calls(programs: Path) -> list[list[str]]:
    """Name and arguments of what was started, in order."""
    text = (programs / "calls").read_text(encoding="utf-8")
    return [call.split("\n") for call in text.removesuffix("\n\n").split("\n\n")]


def start(script: str, programs: Path, *arguments: str, **environment: str) -> subprocess.Popen:
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "SLURM_JOB_ID": "77", **environment}
    return subprocess.Popen([LAUNCH / script, *arguments], env=environment)


def run(script: str, programs: Path, *arguments: str, **environment: str) -> int:
    return start(script, programs, *arguments, **environment).wait(30)


# --- All ----------------------------------------------------------------------------------------


def test_none_is_left_out() -> None:
    assert [path.name for path in SHELL] == ["one_host.sh", "slurm.sh", "tpu_vm.sh"]
    assert [path.name for path in JOB_SETS] == ["gke_gpu.yaml", "gke_tpu.yaml"]


@pytest.mark.parametrize("path", SHELL + JOB_SETS, ids=lambda path: path.name)
def test_the_head_says_how_to_use_edit_and_stop(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    head = list(itertools.takewhile(lambda line: line.startswith("#"), lines))
    for word in ("Use", "Edit", "Stop"):
        assert any(line.startswith(f"# {word}   ") for line in head), word
    assert f"experiments/launch/{path.name}" in "\n".join(head)


@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_the_shell_can_read_it(path: Path) -> None:
    subprocess.run(["bash", "-n", path], check=True)
    assert os.access(path, os.X_OK)


# --- One host -----------------------------------------------------------------------------------


def test_one_host(programs: Path) -> None:
    assert run("one_host.sh", programs, *COMMAND, STATUS="3") == 3
    assert calls(programs) == [["python", "-m", "transformer_jax", *COMMAND]]


@pytest.mark.parametrize(("gpus", "visible"), [("", "unset"), ("0,2", "0,2")])
def test_one_host_takes_the_gpus_named(programs: Path, gpus: str, visible: str) -> None:
    stand_in(programs, "mypython", 'echo "${CUDA_VISIBLE_DEVICES-unset}" > "$0.gpus"')
    assert run("one_host.sh", programs, "train", GPUS=gpus, PYTHON="mypython") == 0
    assert (programs / "mypython.gpus").read_text(encoding="utf-8") == f"{visible}\n"


def test_a_signal_reaches_the_program_on_one_host(programs: Path) -> None:
    stand_in(programs, "python", WAITS)
    process = start("one_host.sh", programs, "train")
    wait_for(programs / "python.ready")
    process.terminate()
    assert process.wait(30) == 143


# --- Slurm --------------------------------------------------------------------------------------

# As the program itself: SIGTERM is answered after a while, with status 143.
WAITS = """
trap 'sleep 0.3; touch "$0.saved"; exit 143' TERM
touch "$0.ready"
for _ in {1..300}; do sleep 0.1; done
"""


def wait_for(path: Path) -> None:
    end = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.02)


def sbatch_options() -> dict[str, str]:
    lines = (LAUNCH / "slurm.sh").read_text(encoding="utf-8").splitlines()
    options = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")]
    return {name: value for name, _, value in (option.partition("=") for option in options)}


def test_slurm_starts_one_process_a_host_that_finds_the_others(programs: Path) -> None:
    assert run("slurm.sh", programs, *COMMAND, STATUS="2") == 2
    program = ["python", "-m", "transformer_jax", *COMMAND, "--distributed.enabled"]
    assert calls(programs) == [["srun", "--kill-on-bad-exit=1", *program]]
    options = sbatch_options()
    assert options["ntasks-per-node"] == "1"
    assert "requeue" in options and options["open-mode"] == "append"
    assert options["signal"] == "B:USR1@300"


@pytest.mark.parametrize(("number", "requeued"), [(signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_slurm_saves_on_a_signal(programs: Path, number: int, requeued: bool) -> None:
    stand_in(programs, "srun", WAITS)
    process = start("slurm.sh", programs, *COMMAND)
    wait_for(programs / "srun.ready")
    process.send_signal(number)
    assert process.wait(30) == 143
    assert (programs / "srun.saved").exists()
    after = [["scontrol", "requeue", "77"]] if requeued else []
    assert calls(programs)[1:] == after


def test_slurm_does_not_queue_again_what_ended_by_itself(programs: Path) -> None:
    """The signal comes in the last seconds of a training that ends well."""
    stand_in(programs, "srun", WAITS.replace("exit 143", "exit 0"))
    process = start("slurm.sh", programs, *COMMAND)
    wait_for(programs / "srun.ready")
    process.send_signal(signal.SIGUSR1)
    assert process.wait(30) == 0
    assert len(calls(programs)) == 1


# --- TPU VM -------------------------------------------------------------------------------------


def gcloud(programs: Path) -> str:
    """The command that every host is given, of the one call of gcloud."""
    ((*call, command),) = calls(programs)
    where = ["my-tpu", "--zone", "europe-west4-b", "--worker=all", "--command"]
    assert call == ["gcloud", "compute", "tpus", "tpu-vm", "ssh", *where]
    return command


TPU = {"TPU_NAME": "my-tpu", "TPU_ZONE": "europe-west4-b"}


def test_tpu_vm_runs_the_command_on_every_host(programs: Path, tmp_path: Path) -> None:
    code = tmp_path / "my code"
    code.mkdir()
    assert run("tpu_vm.sh", programs, *COMMAND, CODE=str(code), PYTHON="python", **TPU) == 0
    command = gcloud(programs)
    (programs / "calls").unlink()
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-c", command], check=True, env={**os.environ, "PATH": path})
    assert calls(programs) == [
        ["python", "-m", "transformer_jax", *COMMAND, "--distributed.enabled"]
    ]


def test_tpu_vm_stop_ends_the_program_and_not_its_own_shell(programs: Path) -> None:
    assert run("tpu_vm.sh", programs, "stop", **TPU) == 0
    command = gcloud(programs)
    name, *options, pattern = shlex.split(command)
    assert (name, options) == ("pkill", ["-TERM", "-f"])

    def found(line: str) -> bool:
        arguments = ["grep", "-qE", "-e", pattern]
        return subprocess.run(arguments, input=line.encode(), check=False).returncode == 0

    assert found("python3 -m transformer_jax train a.py --distributed.enabled")
    assert not found(f"bash -c {command}")


# --- Kubernetes ---------------------------------------------------------------------------------


def job_set(name: str) -> tuple[dict, dict, dict]:
    """A job set, its one job, and the one container of its pods."""
    whole = yaml.safe_load((LAUNCH / name).read_text(encoding="utf-8"))
    (replicated,) = whole["spec"]["replicatedJobs"]
    assert replicated["replicas"] == 1
    job = replicated["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    return whole, job, container


def options_of(container: dict) -> dict[str, str]:
    command, experiment, *options = container["args"]
    assert container["command"] == ["python", "-m", "transformer_jax"] and command == "train"
    load_experiment(str(ROOT / experiment))
    pairs = (option.removeprefix("--").partition("=") for option in options)
    return {name: value for name, _, value in pairs}


@pytest.mark.parametrize("name", [path.name for path in JOB_SETS])
def test_a_job_set_restarts_all_hosts_but_not_for_a_mistake(name: str) -> None:
    whole, job, container = job_set(name)
    assert (whole["apiVersion"], whole["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert job["completions"] == job["parallelism"]
    assert job["backoffLimit"] == 0 and whole["spec"]["failurePolicy"]["maxRestarts"] > 0
    (rule,) = whole["spec"]["failurePolicy"]["rules"]
    assert rule == {"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    (rule,) = job["podFailurePolicy"]["rules"]
    exit_codes = {"containerName": container["name"], "operator": "In", "values": [2]}
    assert rule == {"action": "FailJob", "onExitCodes": exit_codes}
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert job["template"]["spec"]["terminationGracePeriodSeconds"] >= 120


@pytest.mark.parametrize("name", [path.name for path in JOB_SETS])
def test_a_job_set_writes_to_the_volume_that_hosts_share(name: str) -> None:
    _, job, container = job_set(name)
    volumes = {volume["name"]: volume for volume in job["template"]["spec"]["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert set(volumes) == set(mounts.values())
    assert "persistentVolumeClaim" in volumes[mounts["/shared"]]
    options = options_of(container)
    assert options["run-directory"].startswith("/shared/")
    assert options["data.directory"].startswith("/shared/")


def test_the_hosts_of_a_tpu_slice_are_those_of_its_topology() -> None:
    whole, job, container = job_set("gke_tpu.yaml")
    selector = job["template"]["spec"]["nodeSelector"]
    assert selector["cloud.google.com/gke-tpu-accelerator"] == "tpu-v5-lite-podslice"
    rows, columns = map(int, selector["cloud.google.com/gke-tpu-topology"].split("x"))
    assert job["completions"] * container["resources"]["limits"]["google.com/tpu"] == rows * columns
    assert rows * columns == 16
    assert {port["containerPort"] for port in container["ports"]} == {8471, 8482}
    exclusive = whole["metadata"]["annotations"]["alpha.jobset.sigs.k8s.io/exclusive-topology"]
    assert exclusive == "cloud.google.com/gke-nodepool"
    assert options_of(container)["distributed.enabled"] == ""


def test_the_hosts_of_gpus_are_told_of_one_another() -> None:
    whole, job, container = job_set("gke_gpu.yaml")
    assert "cloud.google.com/gke-accelerator" in job["template"]["spec"]["nodeSelector"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    options = options_of(container)
    (port,) = (port["containerPort"] for port in container["ports"])
    name, replicated = whole["metadata"]["name"], whole["spec"]["replicatedJobs"][0]["name"]
    # JobSet's name of a pod: <job set>-<replicated job>-<job>-<pod>.<job set>.
    assert options["distributed.enabled"] == ""
    assert options["distributed.coordinator"] == f"{name}-{replicated}-0-0.{name}:{port}"
    variables = {variable["name"]: variable for variable in container["env"]}
    assert options["distributed.num-processes"] == "$(NUM_HOSTS)"
    assert variables["NUM_HOSTS"]["value"] == str(job["completions"])
    assert options["distributed.process-id"] == "$(HOST_INDEX)"
    index = variables["HOST_INDEX"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert index == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
