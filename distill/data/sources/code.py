"""`code`: the source files of the standard library of the interpreter that runs.

Nothing is downloaded, and every Python has it. The split is by top-level module, so the draft is
measured on modules of which it has not seen a line.
"""

import platform
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from distill.data.sources.rows import Document, Problem, Row
from distill.data.sources.splits import assign_splits, check_fractions
from distill.data.sources.spool import Spool
from distill.errors import UserError
from distill.files import files_sha256

# Not the library: third-party packages, tests, applications that ship with Python.
NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test"} | {
    "idlelib",
    "lib2to3",
    "turtledemo",
    "ensurepip",
    "__hello__",
    "__phello__",
}
# Written by a program: code points, help topics, character names, installer rows.
GENERATED = {"encodings", "pydoc_data", "msilib", "html/entities.py"}
GENERATED_PREFIXES = ("_sysconfigdata", "config-")
MIN_FILES = 50
MIN_HELD_OUT_BYTES = 10_000
"""A smaller module is always for training: it cannot give two different prompts."""


def is_library_code(path: Path) -> bool:
    """Whether a path, relative to the library's root, is code that a person wrote for it."""
    top = path.parts[0]
    return not (
        NOT_LIBRARY.intersection(path.parts)
        or {top, path.as_posix()} & GENERATED
        or top.startswith(GENERATED_PREFIXES)
    )


def module_of(path: Path) -> str:
    """The public module that a file belongs to.

    A private helper goes with the module that it is named after, since the two share text:
    `_pydecimal.py` with `decimal`, `_collections_abc.py` with `collections`.
    """
    name = path.parts[0].removesuffix(".py")
    if not name.startswith("_") or name.startswith("__"):
        return name
    return name[1:].removeprefix("py").split("_")[0] or name


@dataclass
class CodeSource:
    """root: another tree of Python files instead of the standard library's.

    The fractions are of its modules.
    """

    root: str | None = None
    validation_fraction: float = 0.1
    evaluation_fraction: float = 0.2
    problems: list[Problem] = field(default_factory=list, init=False)

    @cached_property
    def _root(self) -> Path:
        return Path(self.root).expanduser() if self.root else Path(sysconfig.get_path("stdlib"))

    @cached_property
    def _files(self) -> list[Path]:
        """Paths relative to the root, sorted."""
        found = (path.relative_to(self._root) for path in self._root.rglob("*.py"))
        return sorted(path for path in found if is_library_code(path))

    def check(self) -> None:
        """Raise a UserError where there is too little to read."""
        check_fractions(self.validation_fraction, self.evaluation_fraction)
        if len(self._files) < MIN_FILES and not self.root:
            raise UserError(
                f"{self._root} has only {len(self._files)} source files of the standard library: "
                "use a Python that is installed with its sources, or data=jsonl with a file."
            )
        if not self._files:
            raise UserError(f"{self._root} holds no Python file: give data.source.root a folder.")

    def rows(self) -> Iterator[Row]:
        """One document a file, in the order of their paths."""
        self.problems.clear()
        splits, spool = self._splits(), Spool()
        for path in self._files:
            try:
                text = (self._root / path).read_text(encoding="utf-8").strip("\n")
            except UnicodeDecodeError:
                self.problems.append(Problem(path.as_posix(), 1, "not UTF-8"))
                continue
            if text:
                module = module_of(path)
                split = splits.get(module, "train")
                kept = spool.put(Document(text + "\n"))
                yield Row(path.as_posix(), "code", module, split, kept)

    def _splits(self) -> dict[str, str]:
        sizes: Counter[str] = Counter()
        for path in self._files:
            sizes[module_of(path)] += (self._root / path).stat().st_size
        large = [module for module, size in sizes.items() if size >= MIN_HELD_OUT_BYTES]
        return assign_splits(large, self.validation_fraction, self.evaluation_fraction)

    @cached_property
    def _sha256(self) -> str:
        return files_sha256(self._root, (self._root / path for path in self._files))

    def fingerprint(self) -> dict[str, Any]:
        """The files by names and bytes, and the settings that decide the rows."""
        return {
            "source": "code",
            "python": platform.python_version() if not self.root else None,
            "files": len(self._files),
            "sha256": self._sha256,
            "fractions": [self.validation_fraction, self.evaluation_fraction],
        }
