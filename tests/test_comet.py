"""COMET through a stand-in for its program, which is too large to install."""

import sys
from pathlib import Path

import pytest

from transformer_jax.comet import comet
from transformer_jax.errors import UserError

# Prints, as the true one does, a line per file; here the score is one of the texts it was given.
PROGRAM = """#!{python}
import sys
given = dict(zip(sys.argv[1:], sys.argv[2:]))
if "--quiet" not in sys.argv or given["--gpus"] != "0" or "comet" not in given["--model"]:
    sys.exit("wrong options")
texts = [open(given[option], encoding="utf-8").read().strip() for option in ("-s", "-t", "-r")]
if texts[0] == "fail":
    sys.exit("no model")
score = (texts == ["a", "ü", "c"]) - 0.25
print(f"{{given['-t']}}\tscore: {{score:.4f}}")
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "comet-score"
    path.write_text(PROGRAM.format(python=sys.executable), encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return path


def test_the_score_is_the_one_that_the_program_prints(program: Path) -> None:
    assert comet(["a"], ["ü"], ["c"]) == 0.75
    assert comet(["a"], ["ü"], ["d"]) == -0.25


def test_what_the_program_says_as_it_fails_is_told(program: Path) -> None:
    with pytest.raises(UserError, match="comet-score failed: no model"):
        comet(["fail"], ["b"], ["c"])


def test_a_missing_program_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="pipx install unbabel-comet"):
        comet(["a"], ["b"], ["c"])
