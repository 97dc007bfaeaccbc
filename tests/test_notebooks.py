"""The notebook is that of its script, and runs in a kernel without a browser or widgets."""

import os
import re
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

SCRIPT = Path(__file__).parents[1] / "experiments" / "notebooks" / "walkthrough.py"
NOTEBOOK = SCRIPT.with_suffix(".ipynb")

PLOT = "application/vnd.plotly.v1+json"
BAR = re.compile(r"\d+%\||\d+ ?\w*/s|it/s")
"""What tqdm writes."""


def contents(notebook: NotebookNode) -> list[tuple]:
    return [(cell.cell_type, cell.source, dict(cell.metadata)) for cell in notebook.cells]


def test_the_notebook_is_made_of_the_script() -> None:
    """`jupytext --to ipynb experiments/notebooks/walkthrough.py` makes it anew."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert contents(notebook) == contents(jupytext.read(SCRIPT))


def test_the_notebook_holds_no_outputs() -> None:
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)


@pytest.mark.slow
def test_the_notebook_runs_in_a_plain_kernel(tmp_path: Path) -> None:
    """All of its cells, tiny, in a folder of its own; a cell's error raises."""
    environment = os.environ | {
        "WALKTHROUGH_TINY": "1",
        "JAX_NUM_CPU_DEVICES": "1",
        "PYTHONPATH": str(SCRIPT.parents[2]),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    # With it the kernel would not see what libraries write past Python.
    environment.pop("PYTEST_CURRENT_TEST", None)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": tmp_path}}
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources)
    code = [cell for cell in client.execute(env=environment).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    for cell in code:
        assert complaints(cell) == [], cell.source
    plots = [output.data[PLOT] for cell in code for output in cell.outputs if is_plot(output)]
    assert len(plots) >= 6
    assert all(plot["data"] for plot in plots)


def complaints(cell: NotebookNode) -> list[str]:
    """What a cell writes to standard error, but progress bars and what training says of itself."""
    streams = [one for one in cell.outputs if one.output_type == "stream"]
    text = "".join(one.text for one in streams if one.name == "stderr")
    lines = [line for line in re.split(r"[\r\n]+", text) if line.strip() and not BAR.search(line)]
    if "train(config, given)" not in cell.source:
        return lines
    assert any(line.startswith("saved step") for line in lines)
    return [line for line in lines if re.search("(?i)warn|error|deprecat|trace", line)]


def is_plot(output: NotebookNode) -> bool:
    """Drawn by the front end; plotly would open a browser elsewhere."""
    return PLOT in output.get("data", {})
