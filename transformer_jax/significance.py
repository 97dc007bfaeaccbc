"""Whether one system is better than another, and how much a score depends on the seed."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest

Method = Literal["bootstrap", "approximate-randomization"]

_SACREBLEU_NAMES = {"bootstrap": "bs", "approximate-randomization": "ar"}


class Comparison(NamedTuple):
    """How a score of a system differs from that of the baseline."""

    p_value: float | None
    """How likely a difference from the baseline this large is by chance; None for the baseline."""
    mean: float | None
    """Mean of the score over the resamples; None without bootstrap."""
    interval: float | None
    """Half the width of its 95 % interval; None without bootstrap."""


def paired_test(
    method: Method,
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    metric: Metric,
) -> tuple[str, dict[str, Comparison]]:
    """sacreBLEU's paired test of every system against the first one.

    `systems` holds hypotheses, and `references` one sequence per reference, all of the same
    sentences. Gives the signature, with the number of trials and their seed, and the comparisons
    by system.
    """
    test = PairedTest(
        list(systems.items()), {"": metric}, references, test_type=_SACREBLEU_NAMES[method]
    )
    # A metric at a time: the results go by sacreBLEU's names, and two are called BLEU.
    signatures, columns = test()
    ((name, signature),) = signatures.items()
    found = {
        system: Comparison(*map(_plain, (row.p_value, row.mean, row.ci)))
        for system, row in zip(systems, columns[name], strict=True)
    }
    return str(signature), found


def _plain(value: float | None) -> float | None:
    return None if value is None else float(value)


def mean_and_deviation(scores: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Mean and sample standard deviation of each score over several runs; there must be two."""
    return {
        name: {
            "mean": statistics.mean(one[name] for one in scores),
            "sd": statistics.stdev(one[name] for one in scores),
        }
        for name in scores[0]
    }
