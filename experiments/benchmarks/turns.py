"""Contenders timed in turns, so that what slows the machine slows all of them."""

import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Work(NamedTuple):
    """What is timed."""

    run: Callable[[], Any]
    amount: int
    """Of what is counted: tokens, sentences."""


def in_turns(
    contenders: Mapping[str, Iterator[Work]], rounds: int, repeats: int, unit: str
) -> dict[str, dict[str, Any]]:
    """So many works of each in every round, made before they are timed; the first round warms up.

    Speeds are `unit` a second: of each round, and their median, which is compared with the first's.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, works in contenders.items():
            chosen = list(itertools.islice(works, repeats))
            start = time.perf_counter()
            for work in chosen:
                work.run()
            spent = time.perf_counter() - start
            if number:
                seconds[name].append(round(spent / repeats, 3))
                speeds[name].append(round(sum(work.amount for work in chosen) / spent, 1))
    medians = {name: statistics.median(found) for name, found in speeds.items()}
    first = next(iter(medians.values()))
    return {
        name: {
            "seconds_each": seconds[name],
            f"{unit}_per_second": speeds[name],
            "median": medians[name],
            "first_is_faster_by": round(first / medians[name], 2),
        }
        for name in contenders
    }


def tell(result: Mapping[str, Any], path: Path | None) -> None:
    """Prints a line for each contender, and writes all as JSON where that is wanted."""
    for name, row in result.items():
        print(name, json.dumps(row))
    if path:
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
