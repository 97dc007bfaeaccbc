"""Who reads what a process says."""

import sys


def is_watched() -> bool:
    """Whether a person looks at standard error, in a terminal or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules
