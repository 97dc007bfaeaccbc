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
    `start_seconds` are those from the start of the process to the end of its first round.
    """
    context = multiprocessing.get_context("spawn")
    pipes, starts = {}, {}
    for name, contender in contenders.items():
        began = time.perf_counter()
        pipes[name], other_end = context.Pipe()
        context.Process(target=_serve, args=(contender, repeats, other_end), daemon=True).start()
        other_end.close()
        _next(pipes[name])
        starts[name] = time.perf_counter() - began
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in pipes}
    for _ in range(rounds):
        for name, pipe in pipes.items():
            found[name].append(_next(pipe))
    for pipe in pipes.values():
        pipe.send(False)
    speeds = {name: [amount / spent for spent, amount in rows] for name, rows in found.items()}
    medians = {name: statistics.median(own) for name, own in speeds.items()}
    first = next(iter(medians.values()))
    return {
        name: {
            "start_seconds": round(starts[name], 2),
            "seconds_each": [round(spent / repeats, 3) for spent, _ in rows],
            f"{unit}_per_second": [round(speed, 1) for speed in speeds[name]],
            "median": round(medians[name], 1),
            "first_is_faster_by": round(first / medians[name], 2),
        }
        for name, rows in found.items()
    }


def _next(pipe: Connection) -> tuple[float, int]:
    """Seconds and amount of the next works of the contender at the other end."""
    pipe.send(True)
    try:
        return pipe.recv()
    except EOFError:
        raise SystemExit("a contender has failed; above stands why") from None


def _serve(contender: Contender, repeats: int, pipe: Connection) -> None:
    """Runs works while told to, and tells seconds and amount."""
    works = contender()
    while pipe.recv():
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
