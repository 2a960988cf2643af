"""Settings of this process that libraries read when they are imported; so they come first.

On CPU those of the C libraries below torch decide more than any code of ours. A machine with
another busy process: a forward pass of 256 tokens through a 135M model on 2 threads took 6.5 to
12.5 s with OpenMP's default of spinning at barriers, 0.44 s without. Multiplying a fresh 50 MB
buffer took 50 ms with glibc's default of mapping large blocks anew each time, 21 ms without. One
run each.
"""

import ctypes
import os
import platform

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""M_TRIM_THRESHOLD and M_MMAP_MAX of <malloc.h>."""


def settle() -> None:
    """Apply all, once, at the very start. What the user set in the environment stays."""
    # How MLflow makes its database is nothing that a user asked for.
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    # Iterations a thread spins before it sleeps: a barrier on a quiet machine takes fewer, and on a
    # busy one the thread that is waited for gets the core.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, -1)  # never


def return_freed_memory() -> None:
    """Give what was freed back to the system, which after `settle` happens at no other time.

    For when the sizes of blocks change, as between stages: else each leaves holes that the next
    cannot fill, and a sweep's process grows with every training.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
