"""Who reads what a process says, and how work is seen to go on."""

import sys
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tqdm import tqdm


def is_watched() -> bool:
    """Whether a person looks at standard error, in a terminal or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def progress_bar(items: Iterable | None = None, **options: object) -> "tqdm":
    """tqdm's bar, which a notebook shows as a widget, or as text where it has no widgets."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "IProgress not found")  # it has no widgets: see above
        from tqdm.auto import tqdm
    return tqdm(items, **options)
