"""The results of a run: its table, a line of JSON a result, and TensorBoard."""

import json
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from transformer_jax.data.text import atomic_writer
from transformer_jax.errors import UserError
from transformer_jax.run_directory import RunDirectory

Result = dict[str, object]

KEY = (
    *("checkpoint", "test_set", "fingerprint"),
    *("beam_size", "length_penalty", "max_extra_length", "min_length", "max_source_length"),
)
"""What tells results apart: weights, text and search."""


def read_results(run: RunDirectory) -> list[Result]:
    """The table, none where nothing was scored. Raises UserError for a broken line."""
    return read_rows(run.results)


def read_rows(path: Path) -> list[dict]:
    """The objects of a file of JSON lines; none where there is no file.

    A last line without its end is left out: someone is writing it. Raises UserError for one that is
    none.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append({**json.loads(line)})
        except (ValueError, TypeError) as error:
            reason = f"no JSON object ({error})"
            raise UserError(f"{path}, line {number}: {reason}; delete the line") from None
    return rows


def find_result(results: Iterable[Result], like: Result) -> Result | None:
    """The one with the key of `like`."""
    return next((one for one in results if _key(one) == _key(like)), None)


def decimals(score: str) -> int:
    """How many a score is given with: COMET lies between 0 and 1, the others between 0 and 100."""
    return 4 if score == "COMET" else 2


def add_result(run: RunDirectory, result: Result) -> None:
    """Puts a result in the table, in place of that with its key, and shows it in TensorBoard."""
    others = [one for one in read_results(run) if _key(one) != _key(result)]
    with atomic_writer(run.results) as file:
        for one in [*others, result]:
            file.write(f"{json.dumps(one, ensure_ascii=False)}\n".encode())
    _to_tensorboard(run, result)


def steps_of(checkpoint: str) -> list[int]:
    """Of `step 300`, or `average of steps 300, 400`."""
    return [int(step) for step in re.findall(r"\d+", checkpoint)]


def _key(result: Result) -> list[object]:
    return [result.get(name) for name in KEY]


def _to_tensorboard(run: RunDirectory, result: Result) -> None:
    """A curve for each score, test set, search and number of averaged checkpoints."""
    from tensorboardX import SummaryWriter

    steps = steps_of(str(result["checkpoint"]))
    curve = f"beam{result['beam_size']}-alpha{result['length_penalty']}"
    if len(steps) > 1:
        curve += f"-average{len(steps)}"
    # By themselves two files of one second have one name.
    suffix = f".{secrets.token_hex(4)}"
    with SummaryWriter(str(run.path / "tensorboard" / curve), filename_suffix=suffix) as writer:
        for name in result["signatures"]:
            writer.add_scalar(f"{result['test_set']}/{name}", result[name], steps[-1])
