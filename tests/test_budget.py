"""Programs cost no more than they did: what `budget.py` counts, against `budget.json`."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import budget
import jax
import jax.numpy as jnp
import numpy as np
import pytest

BUDGET = json.loads(budget.FILE.read_text(encoding="utf-8"))
RENEW = "where that is meant, renew the budget: python tests/budget.py"


@pytest.mark.slow
@pytest.mark.skipif(
    jax.__version__ != BUDGET["jax"] or platform.machine() != "x86_64",
    reason=f"the budget is that of JAX {BUDGET['jax']} on x86_64",
)
def test_no_program_costs_more_than_its_budget(tmp_path: Path) -> None:
    """Counted in a process of its own: what is compiled already is not compiled again."""
    output = tmp_path / "budget.json"
    environment = os.environ | {"PYTHONPATH": str(budget.FILE.parents[1])}
    subprocess.run(
        [sys.executable, str(budget.FILE.with_suffix(".py")), str(output)],
        env=environment,
        check=True,
    )
    found = json.loads(output.read_text(encoding="utf-8"))["programs"]
    assert found.keys() == BUDGET["programs"].keys(), RENEW
    lines = budget.above(found, BUDGET["programs"])
    assert not lines, "\n".join([*lines, RENEW])


def cost(function, *shapes: tuple[int, ...]) -> budget.Figures:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return {"it": budget.figures(jax.jit(function).lower(*arguments).compile())}


def test_a_wasteful_program_is_above_the_budget_of_a_lean_one() -> None:
    """One with more products, and one whose result is written out transposed as well."""

    def lean(x, y):
        return jnp.tanh(x @ y)

    def longer(x, y):
        return lean(lean(lean(x, y), y.T), y)

    def transposed(x, y):
        result = lean(x, y)
        return result, result.T

    shapes = (64, 32), (32, 16)
    most = cost(lean, *shapes)
    assert budget.above(most, most) == []
    product = 2 * 64 * 32 * 16
    assert product <= most["it"]["flops"] < 1.1 * product
    lines = budget.above(cost(longer, *shapes), most)
    assert "it: 3 dots, its budget is 1" in lines
    assert any("flops" in line for line in lines)
    lines = budget.above(cost(transposed, *shapes), most)
    assert "it: 1 transposes and copies, its budget is 0" in lines
    assert any("bytes accessed" in line for line in lines)


def test_figures_of_programs_may_be_a_little_above() -> None:
    most = {"it": {"flops": 1_000, budget.COMPILATIONS: 10}}
    assert budget.above({"it": {"flops": 1_020, budget.COMPILATIONS: 10}}, most) == []
    assert budget.above({"it": {"flops": 1_021, budget.COMPILATIONS: 11}}, most) == [
        "it: 1,021 flops, its budget is 1,000",
        "it: 11 compilations, its budget is 10",
    ]


def test_each_program_is_counted_once() -> None:
    def work() -> None:
        double = jax.jit(lambda x: 2 * x)
        for length in (3, 4, 3):
            double(jax.device_put(np.ones(length, np.float32)))

    assert budget.count_compilations(work) == {budget.COMPILATIONS: 2}
