"""Training from Python, on pairs that Python has."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from transformer_jax.commands.train import train
from transformer_jax.config import Config
from transformer_jax.data.cldr import build_corpus
from transformer_jax.errors import UserError


def test_pairs_that_python_gives_are_trained_on_and_scored(
    tmp_path: Path,
    one_device: None,
    tiny_config: Callable[..., Config],
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = {"data.train": ("given:mine=2",), "data.dev": "given:dev", "data.test": "given:test"}
    config = tiny_config(
        tmp_path / "run", names | {"train.num_steps": 2, "tokenizer.vocab_size": 400}
    )
    corpus = build_corpus("en", "de")
    given = {"mine": corpus["train"][:300], "dev": corpus["dev"][:7], "test": corpus["test"][:5]}
    assert train(config, given) == 0
    printed = capsys.readouterr()
    assert f"direction en -> de\n  pair 1  {corpus['train'][0][0]}" in printed.err
    result = json.loads(printed.out.splitlines()[-1])
    assert (result["test_set"], result["sentences"]) == ("test", 5)
    with pytest.raises(UserError, match="given:mine: Python must give these pairs by name"):
        train(config)
    with pytest.raises(UserError, match="is not what this run was begun"):
        train(config, given | {"mine": corpus["train"][1:301]})
