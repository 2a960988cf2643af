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

settle()
blocks = [b"x" * 2**20 for _ in range(100)]
after_them = b"x" * 2**20  # lies above: the end of the heap cannot simply sink
full = resident()
del blocks
freed = resident()
return_freed_memory()
print(full, freed, resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is settled")
def test_freed_memory_is_kept_for_the_stage_and_returned_after_it() -> None:
    command = [sys.executable, "-c", PROGRAM]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    full, freed, returned = (float(megabytes) for megabytes in output.split())
    assert full - freed < 5
    assert 90 < full - returned < 110
