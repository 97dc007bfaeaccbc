"""Contenders timed in turns, so that what slows the machine slows all of them."""

import itertools
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple


class Work(NamedTuple):
    """What is timed."""

    run: Callable[[], Any]
    amount: int
    """Of what is counted: tokens, sentences."""


Contender = Callable[[], Iterator[Work]]
"""Makes works endlessly. It can be pickled, as it does so in a process of its own."""


def in_turns(
    contenders: Mapping[str, Contender], rounds: int, repeats: int, unit: str
) -> dict[str, dict[str, Any]]:
    """So many works of each in every round, made before they are timed; the first round warms up.

    Every contender has a process, with the settings its users have there. Speeds are `unit` a
    second: of each round, and their median, which is compared with that of the first contender.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    context = multiprocessing.get_context("spawn")
    pipes = {}
    for name, contender in contenders.items():
        pipes[name], other_end = context.Pipe()
        context.Process(target=_serve, args=(contender, repeats, other_end), daemon=True).start()
        other_end.close()
    for number in range(rounds + 1):
        for name, pipe in pipes.items():
            pipe.send("next")
            spent, amount = pipe.recv()
            if number:
                seconds[name].append(round(spent / repeats, 3))
                speeds[name].append(round(amount / spent, 1))
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


def _serve(contender: Contender, repeats: int, pipe: Connection) -> None:
    """Runs works when told to, and tells seconds and amount."""
    works = contender()
    while True:
        pipe.recv()
        chosen = list(itertools.islice(works, repeats))
        start = time.perf_counter()
        for work in chosen:
            work.run()
        pipe.send((time.perf_counter() - start, sum(work.amount for work in chosen)))


def tell(result: Mapping[str, Any], path: Path | None) -> None:
    """Prints a line for each contender, and writes all as JSON where that is wanted."""
    for name, row in result.items():
        print(name, json.dumps(row))
    if path:
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
