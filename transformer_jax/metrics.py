"""What training reports: the progress bar, `metrics.jsonl`, TensorBoard and lines of text."""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Literal

import jax
from tensorboardX import SummaryWriter

from transformer_jax.chips import chip_of
from transformer_jax.config import TrainConfig
from transformer_jax.console import is_watched, progress_bar
from transformer_jax.data.batch_plan import BatchShape
from transformer_jax.distributed import is_first
from transformer_jax.errors import UserError
from transformer_jax.train_step import StepMetrics


@dataclass(frozen=True)
class _Window:
    """Sums over some updates."""

    loss: float = 0.0
    nll: float = 0.0
    targets: int = 0
    sources: int = 0
    positions: int = 0
    """Tokens of both sides, padding included."""
    flops: float = 0.0
    input_wait: float = 0.0
    """Seconds."""

    def __add__(self, other: "_Window") -> "_Window":
        return _Window(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


class MetricsLog:
    """Collects the metrics of updates and reports their means every `log_interval` updates.

    Metrics of an update are fetched when the next one is already on its way, so that the device
    never waits for the host.
    """

    def __init__(
        self,
        directory: Path,
        config: TrainConfig,
        first_step: int,
        count_flops: Callable[[int, int, int, int], float],
    ):
        """`count_flops` gives those of an update from its source and target tokens and lengths."""
        self._config, self._count_flops = config, count_flops
        self._chip = chip_of(jax.devices()[0].device_kind)
        self._reports = is_first()
        path = directory / "metrics.jsonl" if self._reports else os.devnull
        self._file = open(path, "a", encoding="utf-8", newline="\n")
        self._tensorboard = SummaryWriter(
            str(directory / "tensorboard"), write_to_disk=self._reports
        )
        # Without a person at the terminal or in a notebook, lines of text take the bar's place.
        self._watched = self._reports and is_watched()
        self._bar = progress_bar(
            total=config.num_steps,
            initial=first_step,
            unit="step",
            disable=not self._watched,
            dynamic_ncols=True,
        )
        self._waiting: tuple[int, StepMetrics, BatchShape] | None = None
        self._total = self._window = _Window()
        self._aside: dict[str, float] = {}
        self._session_started = time.monotonic()
        self._start_window()

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        self._file.close()
        self._tensorboard.close()

    def update(self, step: int, metrics: StepMetrics, shape: BatchShape) -> None:
        """Takes the metrics of a step just dispatched.

        Raises UserError where too many updates in a row were not finite.
        """
        self.fetch()
        self._waiting = (step, metrics, shape)
        self._bar.update()

    def fetch(self) -> None:
        """Waits for the last update given to `update`, and reports where a line is due."""
        if self._waiting is None:
            return
        step, metrics, (rows, *lengths) = self._waiting
        self._waiting = None
        fetched = jax.device_get(metrics)
        if fetched.skipped_in_a_row >= self._config.max_skipped_updates:
            raise UserError(
                f"step {step}: loss or gradient was not finite in {fetched.skipped_in_a_row} "
                "updates in a row; lower optimizer.learning_rate_scale, set optimizer.clip_norm, "
                "or lengthen optimizer.warmup_steps"
            )
        # A skipped update's loss would turn the mean of the whole window into NaN.
        if fetched.skipped_in_a_row == 0:
            sums, sources = fetched.sums, int(fetched.source_tokens)
            self._window += _Window(
                loss=float(sums.loss),
                nll=float(sums.nll),
                targets=int(sums.tokens),
                sources=sources,
                positions=rows * sum(lengths),
                flops=self._count_flops(sources, int(sums.tokens), *lengths),
            )
        if step % self._config.log_interval == 0:
            self._report(step, fetched)

    def _report(self, step: int, last: StepMetrics) -> None:
        window, seconds = self._window, time.monotonic() - self._started
        # Not a number where no update of the window was finite.
        count, positions = window.targets or math.nan, window.positions or math.nan
        values = {
            "loss": window.loss / count,
            "perplexity": math.exp(min(window.nll / count, 700)),
            "learning_rate": float(last.learning_rate),
            "gradient_norm": float(last.gradient_norm),
            "source_tokens_per_second": window.sources / seconds,
            "target_tokens_per_second": window.targets / seconds,
            "padding": 1 - (window.sources + window.targets) / positions,
            "input_wait": window.input_wait / seconds,
            "skipped_updates": int(last.skipped),
        } | self._speed(window, seconds)
        self.write("train", step, values)
        text = (
            f"loss {values['loss']:.3f}  perplexity {values['perplexity']:.2f}  "
            f"lr {values['learning_rate']:.2e}  "
            f"tokens/s {window.sources / seconds:,.0f} + {window.targets / seconds:,.0f}  "
            f"padding {values['padding']:.1%}"
        )
        if "model_flops_utilisation" in values:
            text += f"  MFU {values['model_flops_utilisation']:.1%}"
        if last.skipped:
            text += f"  skipped {last.skipped}"
        if self._watched:
            self._bar.set_postfix_str(text, refresh=False)
        else:
            self.print(f"step {step}/{self._config.num_steps}  {text}")
        self._start_window()

    def _speed(self, window: "_Window", seconds: float) -> dict[str, float]:
        """Tokens of both sides, and model FLOPs (see `chips.model_flops`), a second and device."""
        devices = jax.device_count()
        values = {
            "tokens_per_second_per_device": (window.sources + window.targets) / seconds / devices,
            "model_flops_per_second_per_device": window.flops / seconds / devices,
        }
        if self._chip is not None:
            share = values["model_flops_per_second_per_device"] / self._chip.peak_flops
            values["model_flops_utilisation"] = share
        return values

    def waited(self, seconds: float) -> None:
        """The next batch was not there for so long."""
        self._window += _Window(input_wait=seconds)

    @contextmanager
    def aside(self, what: Literal["evaluation", "saving"]) -> Iterator[None]:
        """Counts the time of the block as `what`, and not as training."""
        start = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - start
            self._aside[what] = self._aside.get(what, 0.0) + seconds
            self._started += seconds

    def summary(self) -> str:
        """How fast the session was, and where its time went."""
        total = self._total + self._window
        whole = max(time.monotonic() - self._session_started, 1e-9)
        spent = {"waiting for input": total.input_wait} | self._aside
        training = whole - sum(self._aside.values())
        speed = self._speed(total, max(training, 1e-9))
        shares = ", ".join(f"{seconds / whole:.1%} {what}" for what, seconds in spent.items())
        computing = 1 - sum(spent.values()) / whole
        utilisation = "model FLOPs utilisation unknown, as the peak of this device is"
        if "model_flops_utilisation" in speed:
            utilisation = f"model FLOPs utilisation {speed['model_flops_utilisation']:.1%}"
        return (
            f"speed: {speed['tokens_per_second_per_device']:,.0f} tokens/s a device, "
            f"{speed['model_flops_per_second_per_device'] / 1e12:.3g} TFLOP/s, {utilisation}; "
            f"time: {computing:.1%} computing, {shares}"
        )

    def write(self, split: str, step: int, values: dict[str, Any]) -> None:
        """Appends to `metrics.jsonl`, null for what is not finite, and to TensorBoard."""
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._file.write(json.dumps({"step": step, "split": split, **finite}) + "\n")
        self._file.flush()
        for name, value in finite.items():
            if value is not None:
                self._tensorboard.add_scalar(f"{split}/{name}", value, step)

    def print(self, text: str) -> None:
        """A line of text that does not break the progress bar."""
        if self._reports:
            self._bar.write(text, file=sys.stderr)

    def _start_window(self) -> None:
        self._total += self._window
        self._window = _Window()
        self._started = time.monotonic()
