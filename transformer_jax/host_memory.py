"""What the C library does with memory that is freed."""

import ctypes
import os
import platform
from importlib.util import find_spec

# The options of mallopt(3).
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> None:
    """Has what is freed kept for the next update, before JAX is used, where that is on the CPU.

    XLA asks for the memory of an update anew each time, glibc takes so much from the system and
    gives it back, and a fifth of the update is spent on its pages. A process keeps its peak then.
    """
    told = os.environ.get("JAX_PLATFORMS") == "cpu"
    on_cpu = told or not (find_spec("jax_plugins") or find_spec("libtpu"))
    if on_cpu and platform.libc_ver()[0] == "glibc":
        c_library = ctypes.CDLL(None)
        for option, value in ((_TRIM_THRESHOLD, 2**31 - 1), (_MMAP_MAX, 0), (_ARENA_MAX, 1)):
            c_library.mallopt(option, value)
