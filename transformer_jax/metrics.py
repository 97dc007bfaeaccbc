"""What training reports: the progress bar, `metrics.jsonl`, TensorBoard and lines of text."""

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tensorboardX import SummaryWriter
from tqdm.auto import tqdm

from transformer_jax.config import TrainConfig
from transformer_jax.distributed import is_first
from transformer_jax.errors import UserError
from transformer_jax.train_step import StepMetrics


class MetricsLog:
    """Collects the metrics of updates and reports their means every `log_interval` updates.

    Metrics of an update are fetched when the next one is already on its way, so that the device
    never waits for the host.
    """

    def __init__(self, directory: Path, config: TrainConfig, first_step: int):
        self._config = config
        self._reports = is_first()
        path = directory / "metrics.jsonl" if self._reports else os.devnull
        self._file = open(path, "a", encoding="utf-8", newline="\n")
        self._tensorboard = SummaryWriter(
            str(directory / "tensorboard"), write_to_disk=self._reports
        )
        # Without a person at the terminal or in a notebook, lines of text take the bar's place.
        self._watched = self._reports and (sys.stderr.isatty() or "ipykernel" in sys.modules)
        self._bar = tqdm(
            total=config.num_steps,
            initial=first_step,
            unit="step",
            disable=not self._watched,
            dynamic_ncols=True,
        )
        self._waiting: tuple[int, StepMetrics, int] | None = None
        self._start_window()

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        self._file.close()
        self._tensorboard.close()

    def update(self, step: int, metrics: StepMetrics, positions: int) -> None:
        """Takes the metrics of a step just dispatched; `positions` counts both sides' padding too.

        Raises UserError where too many updates in a row were not finite.
        """
        self.fetch()
        self._waiting = (step, metrics, positions)
        self._bar.update()

    def fetch(self) -> None:
        """Waits for the last update given to `update`, and reports where a line is due."""
        if self._waiting is None:
            return
        step, metrics, positions = self._waiting
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
            sums = (fetched.sums.loss, fetched.sums.nll, fetched.sums.tokens)
            self._sums += np.array([*sums, fetched.source_tokens, positions], np.float64)
        if step % self._config.log_interval == 0:
            self._report(step, fetched)

    def _report(self, step: int, last: StepMetrics) -> None:
        loss, nll, targets, sources, positions = self._sums
        seconds = time.monotonic() - self._started
        # Not a number where no update of the window was finite.
        count, positions = targets or math.nan, positions or math.nan
        values = {
            "loss": loss / count,
            "perplexity": math.exp(min(nll / count, 700)),
            "learning_rate": float(last.learning_rate),
            "gradient_norm": float(last.gradient_norm),
            "source_tokens_per_second": sources / seconds,
            "target_tokens_per_second": targets / seconds,
            "padding": 1 - (sources + targets) / positions,
            "skipped_updates": int(last.skipped),
        }
        self.write("train", step, values)
        text = (
            f"loss {values['loss']:.3f}  perplexity {values['perplexity']:.2f}  "
            f"lr {values['learning_rate']:.2e}  "
            f"tokens/s {sources / seconds:,.0f} + {targets / seconds:,.0f}  "
            f"padding {values['padding']:.1%}"
        )
        if last.skipped:
            text += f"  skipped {last.skipped}"
        if self._watched:
            self._bar.set_postfix_str(text, refresh=False)
        else:
            self.print(f"step {step}/{self._config.num_steps}  {text}")
        self._start_window()

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
            tqdm.write(text, file=sys.stderr)

    def pause(self) -> float:
        """Seconds since the window of the throughput began; it goes on after `resume`."""
        return time.monotonic() - self._started

    def resume(self, elapsed: float) -> None:
        """Leaves out the time since `pause`: validation is not training."""
        self._started = time.monotonic() - elapsed

    def _start_window(self) -> None:
        self._sums = np.zeros(5)
        self._started = time.monotonic()
