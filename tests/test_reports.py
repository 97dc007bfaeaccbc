"""The table of public bug reports names tests that exist."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in (TESTS / "REPORTS.md").read_text(encoding="utf-8").split("\n")
    if re.match(r"\| [A-G]\d\d ", line)
]


def named_tests(cell: str) -> list[tuple[str, str]]:
    """(file, function) of every test in a cell; a name alone is of the file named before it."""
    found, file = [], ""
    for name in re.findall(r"`([\w/.:]+)`", cell):
        file, _, function = name.rpartition("::") if "::" in name else (file, "", name)
        if function.startswith("test_") and not function.endswith(".py"):
            found.append((file, function))
    return found


def test_every_report_has_one_row() -> None:
    ids = [row[0] for row in ROWS]
    assert ids == sorted(set(ids))
    assert {one[0] for one in ids} >= {"B", "C", "E"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_report_names_tests_that_exist(row: list[str]) -> None:
    named = named_tests(row[2])
    assert named, "a test, or one beside the reason"
    for file, function in named:
        assert f"def {function}(" in (TESTS / file).read_text(encoding="utf-8"), function
