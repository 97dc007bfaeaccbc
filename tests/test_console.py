"""The progress bar where there are no widgets."""

import subprocess
import sys

import pytest

IN_A_KERNEL = "import sys, ipykernel.zmqshell; sys.modules['ipywidgets'] = None\n"


def standard_error(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("module", ["tqdm.auto", "transformer_jax.console"])
def test_a_kernel_without_widgets_has_a_bar_of_text(module: str) -> None:
    """And no warning of tqdm, which a plain import of it gives."""
    name = {"tqdm.auto": "tqdm", "transformer_jax.console": "progress_bar"}[module]
    text = standard_error(f"{IN_A_KERNEL}from {module} import {name}\nlist({name}([1, 2]))")
    assert "2/2" in text
    assert ("IProgress not found" in text) == (module == "tqdm.auto")
