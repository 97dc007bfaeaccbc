"""Where compiled programs are kept, for the next process that needs the same."""

import os
from pathlib import Path

MAX_SIZE = 2**30
"""Bytes; what was not used for longest goes first."""


def keep_compiled_programs() -> None:
    """Has JAX keep what it compiles in the user's cache directory; before JAX is imported.

    A user who names another directory, by JAX's own variable, is left alone with it. Where nothing
    can be written, nothing is kept.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        directory = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        directory = directory / "transformer_jax" / "compiled"
        # It holds code that is run: no other user may write to it.
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the latter where there is no home
        return
    if not os.access(directory, os.W_OK | os.X_OK):
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(directory)
    # A limit brings a lock with it, so that no process reads what another has half written.
    os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(MAX_SIZE))
    # Not each of the hundreds of little programs that compile as fast as they are read.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
