"""COMET, a learned score, by the program `comet-score` of the package unbabel-comet.

It is a program, not an import, since the package cannot share an environment with JAX: it needs
NumPy 1, JAX NumPy 2.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.data.text import write_lines
from transformer_jax.errors import UserError

MODEL = "Unbabel/wmt22-comet-da"


def find_program() -> str:
    """The path of `comet-score`. Raises UserError where it is not installed."""
    program = shutil.which("comet-score")
    if program is None:
        raise UserError(
            "COMET needs the program comet-score, in an environment of its own: "
            "pipx install unbabel-comet"
        )
    return program


def comet(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """The mean COMET of sentences, computed on the CPU; its model is downloaded on first use.

    Raises UserError where the program is missing or fails.
    """
    program = find_program()
    with tempfile.TemporaryDirectory() as folder:
        options = [program, "--model", MODEL, "--gpus", "0", "--quiet"]
        texts = {"-s": sources, "-t": hypotheses, "-r": references}
        for number, (option, lines) in enumerate(texts.items()):
            path = Path(folder) / str(number)
            write_lines(path, lines)
            options += [option, str(path)]
        environment = os.environ | {"PYTHONUTF8": "1"}
        done = subprocess.run(options, env=environment, capture_output=True, text=True)
    found = re.findall(r"score: (-?\d+(?:\.\d+)?)", done.stdout)
    if done.returncode or not found:
        reason = (done.stderr.strip() or done.stdout.strip() or "no score").split("\n")[-1]
        raise UserError(f"{program} failed: {reason}")
    return float(found[-1])
