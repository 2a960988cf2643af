"""Which code made a result."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class GitState:
    commit: str
    dirty: bool
    """Tracked files differ from the commit, or new ones lie beside them."""


def git_state(folder: Path = PACKAGE) -> GitState | None:
    """The commit that holds `folder`, or None where there is none.

    None also when the folder merely lies inside some repository that does not track it, as an
    installed package in a virtual environment does: that commit would say nothing about this code.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None or not _git(folder, "ls-files", "--", "."):
        return None
    return GitState(commit, dirty=bool(_git(folder, "status", "--porcelain", "--", ":/")))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:  # git is not installed
        return None
    return done.stdout.strip() if done.returncode == 0 else None
