"""What a result was made with: package versions, hardware, and the commit of this code.

Nothing heavy is imported.
"""

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "lightning",
    "datasets",
    "pyarrow",
    "hydra-core",
    "mlflow",
    "distill-draft",
)


@dataclass(frozen=True)
class GitState:
    """The commit of the code that ran."""

    commit: str
    dirty: bool
    """Tracked files differ from the commit, or new ones lie beside them."""


def versions() -> dict[str, str]:
    """Python's version and that of every package a result depends on; absent ones are left out."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue  # run from a bare checkout, or an optional package
    return found


def hardware() -> dict[str, str | int | list[str]]:
    """Operating system, processor, usable cores, memory (GiB) and GPU names: no host or user name.

    GPUs are named only where torch is already loaded, so that asking stays free.
    """
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": _usable_cores(),
        "memory_gib": _memory_gib(),
        "gpus": _gpu_names(),
    }


def git_state(folder: Path = PACKAGE) -> GitState | None:
    """The commit that holds `folder`, or None where there is none.

    None also when the folder merely lies inside some repository that does not track it, as an
    installed package in a virtual environment does: that commit would say nothing about this code.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None or not _git(folder, "ls-files", "--", "."):
        return None
    return GitState(commit, dirty=bool(_git(folder, "status", "--porcelain", "--", ":/")))


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _usable_cores() -> int:
    """Cores this process may run on; a scheduler often grants fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_gib() -> int:
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return 0
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)


def _gpu_names() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:  # git is not installed
        return None
    return done.stdout.strip() if done.returncode == 0 else None
