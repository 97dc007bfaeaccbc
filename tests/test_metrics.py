"""What training reports, against a clock that stands still between ticks."""

import json
from pathlib import Path

import jax.numpy as jnp
import pytest

from transformer_jax.chips import CHIPS, Chip
from transformer_jax.config import TrainConfig
from transformer_jax.data.batch_plan import BatchShape
from transformer_jax.loss import LossSums
from transformer_jax.metrics import MetricsLog
from transformer_jax.train_step import StepMetrics


class Clock:
    """Seconds that pass only when a test says so."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


def metrics_of(targets: int, sources: int) -> StepMetrics:
    sums = LossSums(jnp.float32(2.0 * targets), jnp.float32(1.0 * targets), jnp.int32(targets))
    zero = jnp.int32(0)
    return StepMetrics(sums, jnp.int32(sources), jnp.float32(0.1), jnp.float32(1), zero, zero)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("transformer_jax.metrics.time", clock)
    return clock


@pytest.fixture
def chip(monkeypatch: pytest.MonkeyPatch) -> Chip:
    chip = CHIPS[0]
    monkeypatch.setattr("transformer_jax.metrics.chip_of", lambda kind: chip)
    monkeypatch.setattr("jax.device_count", lambda: 2)
    return chip


def test_speed_is_that_of_training_alone(
    tmp_path: Path, clock: Clock, chip: Chip, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four seconds of training, one of them waiting; three of evaluation, two of saving."""

    def count_flops(sources: int, targets: int, source_length: int, target_length: int) -> float:
        return chip.peak_flops * (sources + targets) / 1_000

    with MetricsLog(tmp_path, TrainConfig(log_interval=2), 0, count_flops) as log:
        for step, (targets, sources) in enumerate([(300, 100), (100, 300)], start=1):
            clock.now += 1.5
            log.update(step, metrics_of(targets, sources), BatchShape(4, 128, 128))
            with log.aside("evaluation"):
                clock.now += 1.5
            with log.aside("saving"):
                clock.now += 1
        clock.now += 1
        log.waited(1)
        log.fetch()
        summary = log.summary()
    (line,) = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    line = json.loads(line)
    assert line["loss"] == 2
    assert line["target_tokens_per_second"] == line["source_tokens_per_second"] == 400 / 4
    assert line["tokens_per_second_per_device"] == 800 / 4 / 2
    assert line["padding"] == 1 - 800 / (2 * 2 * 4 * 128)
    assert line["input_wait"] == 1 / 4
    # 800 tokens at a thousandth of a second of one device's peak each.
    assert line["model_flops_utilisation"] == pytest.approx(0.8 / 4 / 2)
    assert "MFU 10.0%" in capsys.readouterr().err
    assert summary.startswith("speed: 100 tokens/s a device, ")
    assert "model FLOPs utilisation 10.0%; time: " in summary
    shares = "33.3% computing, 11.1% waiting for input, 33.3% evaluation, 22.2% saving"
    assert summary.endswith(shares)
