"""What a result was made with: package versions and the kind of hardware. Imports nothing heavy."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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
