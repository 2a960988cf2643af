"""The losses stand alone, and no loss or signal is told from another by its type."""

import ast
import sys
from pathlib import Path

import pytest

import distill.losses

FILES = sorted(Path(distill.losses.__file__).parent.glob("*.py"))
ALLOWED = {"torch", *sys.stdlib_module_names}
OURS = ("distill.losses", "distill.errors")


def imported(tree: ast.AST) -> set[str]:
    """The dotted names of all modules that are imported anywhere in a file."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module if not node.level else "." * node.level)
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_losses_import_torch_the_standard_library_and_each_other(path: Path) -> None:
    for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
        ours = name in OURS or name.startswith("distill.losses.")
        assert ours or name.split(".")[0] in ALLOWED, name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_loss_asks_for_a_type(path: Path) -> None:
    """Neither by `isinstance` nor by a `case Class():`, which is the same question."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    called = {node.func.id for node in ast.walk(tree)
              if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}  # fmt: skip
    assert not called & {"isinstance", "issubclass", "type"}
    assert not any(isinstance(node, ast.MatchClass) for node in ast.walk(tree))
