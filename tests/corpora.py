"""Where real corpora lie that are too large, or not free, to lie beside the tests."""

import os
from pathlib import Path

import pytest

CORPORA = os.environ.get("CORPORA_DIR", str(Path(__file__).parents[2] / "shared" / "data"))


def find_corpus(name: str) -> Path:
    """The path of a file below `CORPORA_DIR`; where it is not there, the test is skipped."""
    path = Path(CORPORA) / name
    if not path.is_file():
        pytest.skip(f"{path} is not there; CORPORA_DIR names another folder")
    return path
