"""Which checkpoints a text names."""

from pathlib import Path

import pytest

from transformer_jax.checkpoint import Progress
from transformer_jax.errors import UserError
from transformer_jax.loading import choose_steps


class Kept:
    """Checkpoints of steps 0 (the trial) to 500, of which 100 is kept for its score alone."""

    directory = Path("run/checkpoints")

    def __init__(self, best: list[list[float]] | None = None):
        self.best = [[31.5, 400], [30.0, 100]] if best is None else best

    def steps(self) -> list[int]:
        return [0, 100, 300, 400, 500]

    def progress(self, step: int) -> Progress:
        assert step == 500
        return Progress(best=self.best, best_score=self.best[0][0] if self.best else None)


@pytest.mark.parametrize(
    ("checkpoint", "steps"),
    [
        ("newest", [500]),
        ("best", [400]),
        ("300", [300]),
        ("average:1", [500]),
        ("average:3", [300, 400, 500]),
        ("average:best:1", [400]),
        ("average:best:2", [100, 400]),
        ("average:100-400", [100, 300, 400]),
        ("average:150-450", [300, 400]),
        ("average:100-500:200", [100, 300, 500]),
        ("average:300-499:100", [300, 400]),
        ("average:500,100", [100, 500]),
    ],
)
def test_a_text_names_steps(checkpoint: str, steps: list[int]) -> None:
    assert choose_steps(Kept(), checkpoint, keep_newest=3) == steps


@pytest.mark.parametrize(
    ("checkpoint", "words"),
    [
        ("0", "no checkpoint 0; it has 100, 300, 400, 500"),
        ("200", "no checkpoint 200; it has"),
        ("last", "no checkpoint 'last'"),
        ("", "no checkpoint ''"),
        ("average", "no checkpoint 'average'"),
        ("average:", "no checkpoint 'average:'"),
        ("average:0", "no checkpoint 'average:0'"),
        ("average:-1", "no checkpoint 'average:-1'"),
        ("average:4", "keep_newest = 3"),
        ("average:best:3", "the mean of 3 is asked for, but it has only 400, 100"),
        ("average:100-500:100", "no checkpoint 200; it has"),
        ("average:600-700", "no checkpoint 'average:600-700'"),
        ("average:500-100", "no checkpoint 'average:500-100'"),
        ("average:100,200", "no checkpoint 200"),
        ("average:best:", "no checkpoint 'average:best:'"),
    ],
)
def test_a_text_that_names_none(checkpoint: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        choose_steps(Kept(), checkpoint, keep_newest=3)


@pytest.mark.parametrize("checkpoint", ["best", "average:best:1"])
def test_the_best_where_nothing_was_scored(checkpoint: str) -> None:
    with pytest.raises(UserError, match="no checkpoint has been scored yet"):
        choose_steps(Kept(best=[]), checkpoint, keep_newest=3)
