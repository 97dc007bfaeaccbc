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


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> NotebookNode:
    """The notebook after all of its cells, tiny, in a folder of its own; a cell's error raises."""
    folder = tmp_path_factory.mktemp("notebook")
    environment = os.environ | {
        "WALKTHROUGH_TINY": "1",
        "JAX_NUM_CPU_DEVICES": "1",
        "PYTHONPATH": str(SCRIPT.parents[2]),
        "IPYTHONDIR": str(folder / "ipython"),
    }
    # With it the kernel would leave alone what libraries write past Python.
    environment.pop("PYTEST_CURRENT_TEST", None)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}}
    )
    return client.execute(env=environment)


def streams(cell: NotebookNode, name: str) -> str:
    outputs = (one for one in cell.outputs if one.output_type == "stream")
    return "".join(one.text for one in outputs if one.name == name)


@pytest.mark.slow
def test_no_cell_warns(executed: NotebookNode) -> None:
    """Standard error has progress bars, and what training says of itself."""
    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    for cell in code:
        lines = re.split(r"[\r\n]+", streams(cell, "stderr"))
        said = [line for line in lines if line.strip() and not BAR.search(line)]
        if "train(config, given)" in cell.source:
            assert any(line.startswith("saved step") for line in said)
            said = [line for line in said if re.search("(?i)warn|error|deprecat|trace", line)]
        assert said == []
    assert all(cell.execution_count for cell in code)


@pytest.mark.slow
def test_plots_come_as_data_that_the_front_end_draws(executed: NotebookNode) -> None:
    outputs = [one for cell in executed.cells for one in cell.get("outputs", [])]
    plots = [one for one in outputs if PLOT in one.get("data", {})]
    assert len(plots) >= 5
    assert all(one.data[PLOT]["data"] for one in plots)
