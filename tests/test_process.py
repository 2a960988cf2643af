"""What a process holds on to, seen from outside."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import os, re
from distill.process import return_freed_memory, settle

def resident():
    with open("/proc/self/status") as status:
        return int(re.search(r"RssAnon:\\s+(\\d+)", status.read())[1]) / 1024

def fill():
    return [b"x" * 2**20 for _ in range(100)]

settle()
blocks = fill()
above = b"x" * 2**20  # the end of the heap cannot sink below it
full = resident()
del blocks
hole = resident()
return_freed_memory()
returned = resident()
blocks = fill()
del blocks, above
print(full, hole, returned, resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is settled")
def test_freed_memory_is_kept_for_the_stage_and_returned_after_it() -> None:
    command = [sys.executable, "-c", PROGRAM]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    full, hole, returned, end = (float(megabytes) for megabytes in output.split())
    assert full - hole < 5
    assert full - end < 5
    assert 90 < full - returned < 110
