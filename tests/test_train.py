"""Whole runs: cut and resumed, stopped early, gone wrong, and what they report.

"Equal" means the same bytes of weights and of optimizer state, read by Orbax from the newest
checkpoints of two runs.
"""

import dataclasses
import itertools
import json
import math
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from transformer_jax.__main__ import main
from transformer_jax.checkpoint import Checkpoints, Progress
from transformer_jax.config import Config, TokenizerConfig
from transformer_jax.data.batch_plan import plan_epoch
from transformer_jax.data.tokenizer import Tokenizer, train_tokenizer
from transformer_jax.errors import UserError
from transformer_jax.model.transformer import Transformer
from transformer_jax.prepare import Prepared, load_prepared, prepare
from transformer_jax.run_directory import RunDirectory
from transformer_jax.train import Evaluation, StopSignal, Trainer, make_dev_loss

pytestmark = pytest.mark.usefixtures("one_device")

DATA = Path(__file__).parent / "data"

DROPOUT = {"model.dropout_rate": 0.1, "model.attention_dropout_rate": 0.1}
BATCHINGS = pytest.mark.parametrize("batching", ["packed", "bucketed"])


class Session(NamedTuple):
    """A run that is open in this process, at its newest checkpoint."""

    trainer: Trainer
    text: Prepared
    model: Transformer


@contextmanager
def opened(config: Config) -> Iterator[Session]:
    run = RunDirectory(config.run_directory)
    prepare(config, run, lambda line: None)
    text = load_prepared(config, run)
    model = Transformer(
        config.model,
        text.tokenizers.vocab_size,
        text.tokenizers.target.bos_id,
        text.tokenizers.shared,
    )
    with Checkpoints(run.checkpoints, config.checkpoint) as checkpoints:
        trainer = Trainer(config, run, model, text.train, checkpoints, text.store_of)
        trainer.resume()
        yield Session(trainer, text, model)


class StopAfter(StopSignal):
    """As if SIGTERM came during an update."""

    def __init__(self, trainer: Trainer, step: float) -> None:
        self._trainer, self._step = trainer, step

    def requested(self) -> bool:
        return self._trainer.step >= self._step


def train(config: Config, cuts: tuple[int, ...] = (), scores: dict[int, float] | None = None):
    """Trains in one session and one more after every cut, scored by `scores` where they are due.

    Gives back the trainer of the last session.
    """
    for cut in (*cuts, math.inf):
        with opened(config) as session:
            evaluations = [
                Evaluation(2, lambda _, step: {"score": scores[step]}, score="score")
            ] * bool(scores)
            session.trainer.train(evaluations, StopAfter(session.trainer, cut))
    return session.trainer


def steps(config: Config) -> list[int]:
    """The checkpoints that are on the disk, ascending."""
    folders = Path(config.run_directory, "checkpoints").iterdir()
    return sorted(int(folder.name) for folder in folders if folder.name.isdecimal())


def arrays(config: Config) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """All arrays of the newest checkpoint by their path: type, shape and bytes."""
    folder = Path(config.run_directory, "checkpoints", str(steps(config)[-1]))
    tree = {item: ocp.StandardCheckpointer().restore(folder / item) for item in ARRAY_ITEMS}
    leaves = [
        (jax.tree_util.keystr(path), np.asarray(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
    return {path: (leaf.dtype.name, leaf.shape, leaf.tobytes()) for path, leaf in leaves}


ARRAY_ITEMS = ("params", "training")


def progress(config: Config) -> Progress:
    """That of the newest checkpoint, without the time, in which no two runs are equal."""
    with Checkpoints(Path(config.run_directory, "checkpoints")) as checkpoints:
        return dataclasses.replace(checkpoints.progress(steps(config)[-1]), seconds=0.0)


def metrics(config: Config, split: str) -> list[dict]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = Path(config.run_directory, "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    return [line for line in lines if line["split"] == split]


# --- A cut run equals an unbroken one -----------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"data.batching": "packed"},
        pytest.param({"data.batching": "bucketed", "data.max_buckets": 2}, marks=pytest.mark.slow),
        pytest.param({"tokenizer.sampling_rate": 0.2}, marks=pytest.mark.slow),
    ],
    ids=["packed", "bucketed", "sampled"],
)
def test_a_run_that_is_stopped_and_resumed_equals_an_unbroken_one(
    tmp_path: Path, tiny_config: Callable[..., Config], changes: dict[str, object]
) -> None:
    """D04, D05, D08, D10, D13: cut in warm-up, at the end of an epoch and in the second one."""
    changes = DROPOUT | changes
    with opened(tiny_config(tmp_path / "plan", changes)) as session:
        epoch = session.trainer.epochs.get(0)[1].num_batches
    assert epoch > 5, "the cuts below are before, at and after the end of the first epoch"
    changes["train.num_steps"] = epoch + 5

    unbroken = tiny_config(tmp_path / "unbroken", changes)
    cut = tiny_config(tmp_path / "cut", changes)
    other = tiny_config(tmp_path / "other", changes | {"train.seed": 1})
    train(unbroken)
    train(cut, cuts=(3, epoch, epoch + 2))
    train(other)

    assert steps(unbroken) == [0, epoch + 5]
    assert steps(cut) == [0, 3, epoch, epoch + 2, epoch + 5]
    expected = arrays(unbroken)
    assert arrays(cut) == expected
    assert progress(cut) == progress(unbroken)
    assert (progress(cut).epoch, progress(cut).batch) == (1, 5)
    # The name of the checkpoint, the state and Adam count the same updates.
    counts = {p: a for p, a in expected.items() if p.endswith(("['step']", "count']"))}
    assert len(counts) >= 2
    for path, (dtype, _, data) in counts.items():
        assert np.frombuffer(data, dtype) == [epoch + 5], path
    rates = [
        [(line["step"], line["learning_rate"]) for line in metrics(config, "train")]
        for config in (unbroken, cut)
    ]
    assert rates[0] == rates[1]
    # All of it is compared, and could differ: weights, both moments of Adam, counts, the key.
    for part in ("['params']", "['opt_state']", "mu", "nu", "['key']", "['step']"):
        assert any(part in path for path in expected), part
    differing = {path for path, array in arrays(other).items() if array != expected[path]}
    assert len(differing) > len(expected) / 2


@pytest.fixture(scope="module")
def long_run(
    one_device: None,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_config: Callable[..., Config],
) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """The last arrays of an unbroken run of `LONG`, trained in this process."""
    config = tiny_config(tmp_path_factory.mktemp("unbroken") / "run", LONG)
    train(config)
    return arrays(config)


LONG = DROPOUT | {
    "train.num_steps": 400,
    "train.log_interval": 20,
    "train.dev_loss_interval": 50,
    "checkpoint.interval": 20,
    "data.test": "",
}


def signal_while_training(process: subprocess.Popen, number: int, delay: float = 0.0) -> str:
    """Sends a signal some time after the first line of metrics; gives back what was printed."""
    printed = b""
    for line in process.stderr:
        printed += line
        if line.startswith(b"step "):
            break
    time.sleep(delay)
    process.send_signal(number)
    _, rest = process.communicate(timeout=120)
    return (printed + rest).decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_that_the_same_command_goes_on_with(
    tmp_path: Path,
    tiny_config: Callable[..., Config],
    tiny_experiment: Callable[..., str],
    start_cli: Callable,
    run_cli: Callable,
    long_run: dict,
    number: int,
) -> None:
    """G09."""
    command = "train", tiny_experiment(tmp_path, LONG)
    config = tiny_config(tmp_path / "run", LONG)

    process = start_cli(*command)
    printed = signal_while_training(process, number)
    assert process.returncode == 128 + number, printed
    assert "Traceback" not in printed
    assert printed.endswith("stopped by a signal; the same command goes on from here\n")
    stopped = steps(config)[-1]
    assert 0 < stopped < 400
    assert f"saved step {stopped} in " in printed
    assert arrays(config) != long_run

    resumed = run_cli(*command)
    assert resumed.returncode == 0, resumed.stderr.decode()
    assert f"steps {stopped} to 400" in resumed.stderr.decode()
    assert steps(config)[-1] == 400
    assert arrays(config) == long_run


def test_g09_a_signal_before_the_first_update_leaves_nothing_in_the_way(
    tmp_path: Path,
    tiny_config: Callable[..., Config],
    tiny_experiment: Callable[..., str],
    start_cli: Callable,
) -> None:
    """While weights are made and the first batch is compiled nothing is lost, so nothing waits."""
    changes = {"train.num_steps": 2, "data.test": ""}
    process = start_cli("train", tiny_experiment(tmp_path, changes))
    for line in process.stderr:
        if line.startswith(b"dev: kept"):
            break
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == -signal.SIGTERM  # 143 for a shell
    config = tiny_config(tmp_path / "run", changes)
    assert train(config).step == 2
    assert steps(config) == [0, 2]


@pytest.mark.slow
def test_a_run_that_is_killed_at_any_moment_goes_on_from_its_last_checkpoint(
    tmp_path: Path,
    tiny_config: Callable[..., Config],
    tiny_experiment: Callable[..., str],
    start_cli: Callable,
    run_cli: Callable,
    long_run: dict,
) -> None:
    """D19."""
    command = "train", tiny_experiment(tmp_path, LONG)
    config = tiny_config(tmp_path / "run", LONG)
    delays = [random.uniform(0, 0.6), random.uniform(0, 0.6)]
    print(f"killed {delays} seconds after the first line")

    for delay in delays:
        process = start_cli(*command)
        signal_while_training(process, signal.SIGKILL, delay)
        assert process.returncode == -signal.SIGKILL
        newest = steps(config)[-1]
        # Every 20 steps, and with every score of a validation, every 50.
        assert newest % 20 == 0 or newest % 50 == 0, "a checkpoint that was not due"
        assert len(arrays(config)) == len(long_run)
        assert progress(config).epoch * 27 + progress(config).batch == newest

    resumed = run_cli(*command)
    assert resumed.returncode == 0, resumed.stderr.decode()
    assert arrays(config) == long_run
    unfinished = [p.name for p in Path(config.run_directory, "checkpoints").iterdir()]
    assert sorted(map(int, unfinished)) == steps(config), "rubbish of the killed saves"


def test_more_steps_go_on_with_a_run_that_has_ended(
    tmp_path: Path, tiny_config: Callable[..., Config]
) -> None:
    """D35, D36: `num_steps` counts from the start of the run."""
    once = tiny_config(tmp_path / "once", DROPOUT | {"train.num_steps": 9})
    twice = tiny_config(tmp_path / "twice", DROPOUT | {"train.num_steps": 4})
    more = tiny_config(tmp_path / "twice", DROPOUT | {"train.num_steps": 9})
    train(once)
    train(twice)
    assert steps(twice) == [0, 4]
    RunDirectory(twice.run_directory).check_same_experiment(more)
    train(more)
    assert steps(more) == [0, 4, 9]
    assert arrays(more) == arrays(once)


# --- Early stopping, and which checkpoints are kept ---------------------------------------------

SCORES = {2: 1.0, 4: 3.0, 6: 2.0, 8: 3.0, 10: 2.5, 12: 9.0, 14: 0.0, 16: 9.0, 18: 8.0, 20: 7.0}


def expected_end(patience: int) -> int:
    """The first step with `patience` scores in a row that are no better than one before."""
    for step in SCORES:
        until = [score for other, score in SCORES.items() if other <= step]
        first_best = until.index(max(until))
        if patience and len(until) - 1 - first_best >= patience:
            return step
    return max(SCORES)


def expected_kept(saved: set[int], end: int, newest: int, best: int) -> list[int]:
    ranked = sorted((s for s in SCORES if s <= end), key=lambda step: (-SCORES[step], step))
    return sorted({*sorted(saved)[-newest:], *ranked[:best]})


@pytest.mark.parametrize(
    ("patience", "newest", "best", "cuts"),
    [
        (0, 1, 1, ()),
        (0, 1, 2, (5, 11, 13)),
        (0, 3, 0, (14,)),
        (3, 2, 1, (7,)),
        (2, 1, 1, ()),
    ],
)
def test_training_ends_with_its_patience_and_keeps_the_best_and_newest_checkpoints(
    tmp_path: Path,
    tiny_config: Callable[..., Config],
    patience: int,
    newest: int,
    best: int,
    cuts: tuple[int, ...],
) -> None:
    config = tiny_config(
        tmp_path / "run",
        {
            "train.num_steps": 20,
            "train.patience": patience,
            "checkpoint.interval": 3,
            "checkpoint.keep_newest": newest,
            "checkpoint.keep_best": best,
        },
    )
    trainer = train(config, cuts, SCORES)
    end = {0: 20, 3: 10, 2: 8}[patience]
    assert expected_end(patience) == end
    assert trainer.step == end
    saved = {0, *cuts, *range(3, end, 3), *range(2, end + 1, 2)}
    saved = {step for step in saved if step <= end}
    assert steps(config) == expected_kept(saved, end, newest, best)
    found = progress(config)
    assert (found.best_score, found.best_step) == ((9.0, 12) if end > 10 else (3.0, 4))

    # The same command once more has nothing left to do.
    before = arrays(config)
    assert train(config, (), SCORES).step == end
    assert (arrays(config), progress(config)) == (before, found)


@pytest.mark.parametrize(
    ("scores", "newest", "best", "kept"),
    [((5.0, 9.0, 8.0, 7.0, 6.0), 2, 1, [2, 4, 5]), ((2.0, 6.0, 4.0), 1, 2, [2, 3])],
)
def test_d22_d24_the_newest_are_kept_and_the_best_besides(
    tmp_path: Path,
    tiny_config: Callable[..., Config],
    scores: tuple[float, ...],
    newest: int,
    best: int,
    kept: list[int],
) -> None:
    """With score i at step i, counted from 1."""
    keep = {"checkpoint.keep_newest": newest, "checkpoint.keep_best": best}
    config = tiny_config(tmp_path / "run", keep | {"train.num_steps": len(scores)})
    with opened(config) as session:
        evaluation = Evaluation(1, lambda _, step: {"score": scores[step - 1]}, score="score")
        session.trainer.train([evaluation], StopSignal())
    assert steps(config) == kept


def test_a_validation_cut_by_a_signal_is_made_up_for(
    tmp_path: Path, tiny_config: Callable[..., Config]
) -> None:
    """G09."""
    config = tiny_config(tmp_path / "run", {"train.num_steps": 20, "checkpoint.keep_newest": 1})
    asked = []

    def evaluate_with(stop: StopSignal) -> Callable:
        def evaluate(_params: object, step: int) -> dict[str, float]:
            asked.append(step)
            if asked == [2, 4]:
                stop.number = signal.SIGTERM
            stop.check()
            return {"score": 100.0 if step == 4 else float(step)}

        return evaluate

    for expected in (4, 20):
        with opened(config) as session:
            stop = StopSignal()
            session.trainer.train([Evaluation(2, evaluate_with(stop), "score")], stop)
        assert session.trainer.step == expected
    assert asked == [2, 4, 4, *range(6, 21, 2)]
    assert progress(config).best_step == 4
    assert progress(config).validations_since_best == 8
    assert steps(config) == [4, 20]


# --- What is reported ---------------------------------------------------------------------------


@BATCHINGS
def test_validation_is_exact_to_the_token(
    tmp_path: Path, tiny_config: Callable[..., Config], batching: str
) -> None:
    """D17, D18: 23 pairs in batches, and one by one."""
    changes = {"data.batching": batching, "train.dev_loss_interval": 12}
    config = tiny_config(tmp_path / "run", changes)
    with opened(config) as session:
        trainer, text, model = session
        stop = StopSignal()
        dev_loss = make_dev_loss(config, model, text.dev, trainer, stop)
        trainer.train([Evaluation(12, dev_loss, "negative_loss")], stop)

        # The same from the text, a pair at a time, in NumPy from the logits on.
        length = 40
        apply = jax.jit(lambda batch: model.apply({"params": trainer.state.params}, batch))
        nll = smoothed = tokens = 0.0
        for pair in zip(
            *(
                (DATA / f"base/valid.{language}").read_text(encoding="utf-8").splitlines()
                for language in ("en", "de")
            ),
            strict=True,
        ):
            batch = {}
            tokenizer = text.tokenizers.source
            ids = [[*side, tokenizer.eos_id] for side in tokenizer.encode(list(pair))]
            for name, side in zip(("inputs", "targets"), ids, strict=True):
                filler = [0] * (length - len(side))
                batch[name] = np.array([side + filler])
                batch[f"{name}_positions"] = np.array([[*range(len(side)), *filler]])
                batch[f"{name}_segments"] = np.array([[1] * len(side) + filler])
            logits = np.asarray(apply(batch), np.float64)[0, : len(ids[1]), :320]  # no filler rows
            log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
            nll -= log_probs[np.arange(len(ids[1])), ids[1]].sum()
            smoothed -= log_probs.mean(axis=-1).sum()
            tokens += len(ids[1])

    [line] = metrics(config, "dev")
    assert line["step"] == 12
    assert line["perplexity"] == pytest.approx(math.exp(nll / tokens), rel=1e-5)
    assert line["loss"] == pytest.approx((0.9 * nll + 0.1 * smoothed) / tokens, rel=1e-5)
    assert line["negative_loss"] == -line["loss"]
    assert progress(config).best_score == -line["loss"]


def test_metrics_of_an_epoch(tmp_path: Path, tiny_config: Callable[..., Config]) -> None:
    config = tiny_config(tmp_path / "run", {"train.num_steps": 27, "train.log_interval": 1})
    with opened(config) as session:
        session.trainer.train([], StopSignal())
        store = session.text.train
        num_tokens = [int(store.source_lengths.sum()), int(store.target_lengths.sum())]
    assert session.trainer.progress.epoch == 1, "27 updates are one epoch"
    lines = metrics(config, "train")
    assert [line["step"] for line in lines] == list(range(1, 28))
    for line in lines:
        assert line.keys() == {
            *("step", "split", "loss", "perplexity", "learning_rate", "gradient_norm"),
            *("source_tokens_per_second", "target_tokens_per_second", "padding"),
            *("tokens_per_second_per_device", "model_flops_per_second_per_device"),
            *("input_wait", "skipped_updates"),
        }
        step = line["step"]
        rate = 16**-0.5 * min(step**-0.5, step * 20**-1.5)
        assert line["learning_rate"] == pytest.approx(rate, rel=1e-6)
        assert line["skipped_updates"] == 0
        assert line["gradient_norm"] > 0
        sides = line["source_tokens_per_second"], line["target_tokens_per_second"]
        assert sides[0] > 0 and sides[1] > 0
    # A batch has 256 places a side; over an epoch, what is no padding is the corpus.
    assert sum(1 - line["padding"] for line in lines) * 512 == pytest.approx(sum(num_tokens))
    # Before the first update the model knows next to nothing of the 320 pieces.
    assert lines[0]["perplexity"] == pytest.approx(320, rel=0.5)
    assert lines[-1]["loss"] < lines[0]["loss"]


def test_updates_are_traced_where_that_is_asked_for(
    tmp_path: Path, tiny_config: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"train.num_steps": 8, "profile.start": 3, "profile.steps": 2}
    config = tiny_config(tmp_path / "run", changes)
    train(config)
    err = capsys.readouterr().err
    assert "tracing updates 4 to 5 in" in err
    assert list((tmp_path / "run/profile").rglob("*.xplane.pb"))
    assert "model FLOPs utilisation unknown, as the peak of this device is; time: " in err


def test_a_line_of_metrics_is_the_mean_over_its_interval(
    tmp_path: Path, tiny_config: Callable[..., Config]
) -> None:
    each = tiny_config(tmp_path / "each", {"train.log_interval": 1})
    fourth = tiny_config(tmp_path / "fourth", {"train.log_interval": 4})
    train(each)
    trainer = train(fourth)
    plan = plan_epoch(
        trainer.store.source_lengths, trainer.store.target_lengths, each.data, 0, 0, 1
    )
    counts = [
        trainer.store.target_lengths[plan.pairs[plan.row_starts[a] : plan.row_starts[b]]].sum()
        for a, b in itertools.pairwise(plan.batch_starts)
    ]
    losses = [line["loss"] for line in metrics(each, "train")]
    lines = metrics(fourth, "train")
    assert [line["step"] for line in lines] == [4, 8, 12]
    for line in lines:
        window = slice(line["step"] - 4, line["step"])
        mean = np.average(losses[window], weights=counts[window])
        assert line["loss"] == pytest.approx(mean, rel=1e-6)


# --- Runs that go wrong -------------------------------------------------------------------------


def last_error(capsys: pytest.CaptureFixture[str]) -> str:
    """The message of a command that failed: one line, the last one, and no traceback."""
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    messages = [line for line in printed.splitlines() if line.startswith("transformer-jax: ")]
    assert printed.endswith(f"{messages[-1]}\n")
    assert len(messages) == 1
    return messages[0].removeprefix("transformer-jax: ")


def test_updates_that_are_not_finite_end_the_run(
    tmp_path: Path,
    tiny_config: Callable[..., Config],
    tiny_experiment: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """D33."""
    changes = {
        "optimizer.learning_rate_scale": 1e30,
        "train.max_skipped_updates": 5,
        "train.log_interval": 1,
        "checkpoint.interval": 3,
    }
    config = tiny_config(tmp_path / "run", changes)
    assert main(["train", tiny_experiment(tmp_path, changes)]) == 2
    message = last_error(capsys)
    assert "step 6: " in message and "not finite in 5 updates in a row" in message
    assert "learning_rate_scale" in message

    lines = metrics(config, "train")
    assert [line["skipped_updates"] for line in lines] == [0, 1, 2, 3, 4]
    assert lines[0]["gradient_norm"] > 0
    assert lines[0]["loss"] > 0
    assert [line["loss"] for line in lines[1:]] == [None] * 4, "there was nothing to take a mean of"
    assert [line["learning_rate"] for line in lines[1:]] == [lines[1]["learning_rate"]] * 4

    # The first update was finite, the skipped ones changed nothing, and the checkpoint is whole.
    assert steps(config)[-1] in (3, 6)
    for path, (dtype, _, data) in arrays(config).items():
        assert np.isfinite(np.frombuffer(data, dtype)).all(), path
    with opened(config) as session:
        assert session.trainer.step == steps(config)[-1]
        assert int(session.trainer.state.skipped) == session.trainer.step - 1


def compilations(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What JAX has said to compile."""
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if message.startswith("Compiling ")]


def test_d19_d20_damaged_checkpoints_are_set_aside_for_the_one_before_them(
    tmp_path: Path, tiny_config: Callable[..., Config]
) -> None:
    """One with a file cut short, and a folder that only looks like one."""
    changes = {"train.num_steps": 9, "checkpoint.interval": 3, "checkpoint.keep_newest": 9}
    config = tiny_config(tmp_path / "run", changes)
    train(config)
    expected = arrays(config)
    assert steps(config) == [0, 3, 6, 9]
    folder = tmp_path / "run/checkpoints"
    manifest = folder / "9/training/manifest.ocdbt"
    manifest.write_bytes(manifest.read_bytes()[:10])
    shutil.rmtree(folder / "6")
    (folder / "6").mkdir()
    with opened(config) as session:
        assert session.trainer.step == 3
        warnings = session.trainer.summary()[:2]
        session.trainer.train([], StopSignal())
    for step, warning in zip((9, 6), warnings, strict=True):
        assert warning.startswith(f"WARNING: {folder}/{step}: not a checkpoint of this model (")
        (aside,) = folder.glob(f"unreadable-{step}-*")
        assert f"going on from step 3; the damaged one is now {aside}" in warning
    assert steps(config) == [0, 3, 6, 9]
    assert arrays(config) == expected

    # Where none is whole, none is touched.
    for step in steps(config):
        shutil.rmtree(folder / f"{step}/params")
    before = frozen(tmp_path / "run")
    with pytest.raises(UserError, match=f"{folder}/0: not a checkpoint"), opened(config):
        pytest.fail("it must not go on")
    assert frozen(tmp_path / "run") == before


def test_d35_d36_a_run_that_has_ended_says_so(
    tmp_path: Path, tiny_experiment: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"train.num_steps": 4, "data.test": ""}
    experiment = tiny_experiment(tmp_path, changes)
    assert main(["train", experiment]) == 0
    before = frozen(tmp_path / "run")
    for more, told in (([], "4 of 4"), (["--train.num-steps", "2"], "4 of 2")):
        capsys.readouterr()
        assert main(["train", experiment, *more]) == 0
        assert f"already at step {told} in {tmp_path}/run: " in capsys.readouterr().err
        # TensorBoard begins a new file in every session.
        after = frozen(tmp_path / "run")
        rewritten = [name for name in before if after[name] != before[name]]
        assert rewritten == (["config.json"] if more else [])


def test_d37_five_pairs_make_a_batch(tmp_path: Path, tiny_config: Callable[..., Config]) -> None:
    """Of 64 rows."""
    for name in ("train", "valid"):
        for language in ("en", "de"):
            lines = (DATA / f"base/{name}.{language}").read_bytes().split(b"\n")[:5]
            (tmp_path / f"{name}.{language}").write_bytes(b"\n".join(lines) + b"\n")
    changes = {
        "data.directory": str(tmp_path),
        "data.batching": "bucketed",
        "data.max_buckets": 1,
        "data.tokens_per_update": 64 * 64,
        "data.test": "",
        "tokenizer.vocab_size": 300,
        "train.num_steps": 2,
        "train.log_interval": 1,
    }
    config = tiny_config(tmp_path / "run", changes)
    with opened(config) as session:
        before = jax.device_get(session.trainer.state.params)
        session.trainer.train([], StopSignal())
        after = jax.device_get(session.trainer.state.params)
        assert len(session.text.train) == 5
    assert session.trainer.progress.epoch == 2, "each epoch is one batch"
    assert all(line["loss"] > 0 for line in metrics(config, "train"))
    assert not all(jax.tree.leaves(jax.tree.map(np.array_equal, before, after)))


def test_d30_an_update_is_compiled_once_for_each_shape(
    tmp_path: Path, tiny_config: Callable[..., Config], caplog: pytest.LogCaptureFixture
) -> None:
    """Two epochs with two validations: nothing is compiled in the second one."""
    changes = {"data.batching": "bucketed", "data.max_buckets": 2, "train.num_steps": 1_000}
    config = tiny_config(tmp_path / "run", changes)
    compiled: list[tuple[int, int]] = []
    with opened(config) as session:
        trainer, text, model = session
        stop = StopSignal()
        lengths = text.train.source_lengths, text.train.target_lengths
        plan = [plan_epoch(*lengths, config.data, 0, epoch, 1) for epoch in range(2)]
        shapes = {tuple(shape) for one in plan for shape in one.shapes.tolist()}
        epoch = plan[0].num_batches
        dev_loss = make_dev_loss(config, model, text.dev, trainer, stop)

        def evaluate(params: object, step: int) -> dict[str, float]:
            scores = dev_loss(params, step)
            compiled.append((step, len(compilations(caplog))))
            if step == 2 * epoch:
                stop.number = signal.SIGTERM
            return scores

        with jax.log_compiles():
            trainer.train([Evaluation(epoch, evaluate)], stop)
    (first, count), (second, same) = compiled
    assert (first, second) == (epoch, 2 * epoch)
    assert len(shapes) == 2
    assert len(shapes) <= count <= 3 * len(shapes) + 20
    assert same == count


def frozen(run: Path) -> dict[str, bytes]:
    """What a refused command must not touch."""
    files = [p for p in run.rglob("*") if p.is_file()]
    return {str(p.relative_to(run)): p.read_bytes() for p in files}


def changed_corpus(folder: Path) -> dict[str, object]:
    shutil.copytree(DATA / "base", folder / "text")
    with (folder / "text/train.de").open("r+", encoding="utf-8") as file:
        file.write("D")
    return {"data.directory": str(folder / "text")}


def changed_tokenizer(folder: Path, vocab_size: int) -> dict[str, object]:
    path = folder / "run/tokenizer.model"
    sentences = (DATA / "base/train.de").read_text(encoding="utf-8").splitlines()
    alphabet = (DATA / "base/train.en").read_text(encoding="utf-8").splitlines()
    path.write_bytes(
        train_tokenizer(sentences * 3 + alphabet, TokenizerConfig(vocab_size=vocab_size))
    )
    assert Tokenizer.load(path).vocab_size == vocab_size
    return {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed_corpus, ["corpus", "begun with"]),
        (lambda folder: changed_tokenizer(folder, 320), ["the tokenizer", "begun with"]),
        (lambda folder: changed_tokenizer(folder, 330), ["the tokenizer", "begun with"]),
        (lambda folder: {"model.num_layers": 2}, ["model.num_layers = 1, not 2", "begun with"]),
        (lambda folder: {"train.seed": 3}, ["train.seed = 0, not 3", "begun with"]),
    ],
    ids=["corpus", "tokenizer", "vocabulary", "layers", "seed"],
)
def test_a_run_does_not_go_on_as_another_one(
    tmp_path: Path,
    tiny_config: Callable[..., Config],
    tiny_experiment: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Path], dict[str, object]],
    words: list[str],
) -> None:
    """D35."""
    train(tiny_config(tmp_path / "run", {"train.num_steps": 4, "data.test": ""}))
    changes = change(tmp_path)
    experiment = tiny_experiment(tmp_path, {"train.num_steps": 8, "data.test": "", **changes})
    before = frozen(tmp_path / "run")
    assert main(["train", experiment]) == 2
    message = last_error(capsys)
    assert str(tmp_path / "run") in message
    for word in words:
        assert word in message
    assert frozen(tmp_path / "run") == before
