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

KNOWN = """
A01 A03 A04 A06 A07 A10 A12 A14 A15 A16 A18 A19 A21 A22 A23 A24 A25
B01 B03 B04 B06 B08 B09 B10 B11 B13 B14 B16 C01 C02 C03 C05 C07 C08 C10 C12 C13 C15
D01 D02 D04 D05 D07 D08 D10 D11 D13 D14 D15 D17 D18 D19 D20 D21 D22 D24 D27 D29 D30 D33 D35 D36
D37 E01 E03 E04 E06 E07 E08 E09 E11 E12 E13 E15 E17 E19 F01 F02 F03 F06 F07 F08 F09 F11 F12 G01
G03 G05 G06 G07 G09 G11 G13
"""


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
    assert set(ids) >= set(KNOWN.split())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_report_names_tests_that_exist(row: list[str]) -> None:
    named = named_tests(row[2])
    assert named, "a test, or one beside the reason"
    sources = ""
    for file, function in named:
        source = (TESTS / file).read_text(encoding="utf-8")
        assert f"def {function}(" in source, function
        sources += source[source.index(f"def {function}(") :].split("\n\n\n")[0]
    assert re.search(row[0], sources, re.IGNORECASE), f"no test of {row[0]} names it"
