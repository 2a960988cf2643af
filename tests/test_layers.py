"""Arrows between the parts go one way, no import closes a circle, and links lead to folders."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINKS = ("conf", "pipelines", "evaluate")
CORE = ("data", "losses", "models", "serving", "speculative", "teacher", "tracking", "training")
DOOR = {"distill.cli", "distill.__main__"}
CONFIGURATION = re.compile(r"distill\.(schema|content|errors|\w+\.config|speculative\.sampling)")
"""Settings are read by every part; they import nothing but each other."""

KINDS = {"distill.models.eagle3"}
"""The weights of a kind of draft of our own: the engine runs them, so they read nothing else."""


def sources() -> dict[str, Path]:
    """Every module of ours by its import name, through the links."""
    found = {}
    for top in ("distill", *LINKS[1:]):
        for path in (ROOT / top).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if top == "distill" and len(parts) > 1 and parts[1] in LINKS:
                continue  # a link, followed below
            name = ".".join(parts if top == "distill" else ("distill", *parts))
            found[name.removesuffix(".__init__")] = path
    return found


SOURCES = sources()


def imports(path: Path, everywhere: bool) -> Iterator[str]:
    """Modules of ours that a file imports: at its top level, or in its functions too.

    What stands under `if TYPE_CHECKING` is never run.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = ast.walk(tree) if everywhere else iter(tree.body)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name in SOURCES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = [f"{node.module}.{one.name}" for one in node.names]
            inner = [name for name in whole if name in SOURCES]
            yield from inner
            if len(inner) < len(whole) and node.module in SOURCES:
                yield node.module


def test_links_lead_to_the_folders_of_the_top_level():
    for name in LINKS:
        assert (ROOT / "distill" / name).is_symlink()
        assert (ROOT / "distill" / name).resolve() == ROOT / name


def test_no_import_closes_a_circle():
    arrows = {name: set(imports(path, everywhere=True)) - {name} for name, path in SOURCES.items()}
    order: list[str] = []
    while ready := [name for name, read in arrows.items() if not read & arrows.keys()]:
        order += ready
        arrows = {name: read for name, read in arrows.items() if name not in ready}
    assert not arrows, f"a circle among {sorted(arrows)}"


def test_arrows_go_one_way():
    for name, path in SOURCES.items():
        part = name.split(".")[1] if "." in name else ""
        read = {one for one in imports(path, everywhere=True) if not CONFIGURATION.fullmatch(one)}
        tops = {one.split(".")[1] for one in read if "." in one}
        if part in CORE:
            assert not tops & {"evaluate", "pipelines", "cli"}, f"{name} reads {sorted(read)}"
        if part == "evaluate":
            assert not tops & {"pipelines", "cli"}, f"{name} reads {sorted(read)}"
        if part == "pipelines":
            assert "cli" not in tops, f"{name} reads {sorted(read)}"
        if part == "speculative":
            tops = {one.split(".")[1] for one in read - KINDS}
            assert tops <= {"speculative", "files", "versions"}, f"{name} reads {sorted(read)}"
        if name in KINDS:
            assert not read, f"{name} reads {sorted(read)}"


def test_losses_and_the_rule_import_torch_alone():
    for name, path in SOURCES.items():
        if not name.startswith("distill.losses") and name != "distill.speculative.rule":
            continue
        text = path.read_text(encoding="utf-8")
        heads = re.findall(r"^(?:from|import) ([\w.]+)", text, re.MULTILINE)
        foreign = [one for one in heads if one.startswith(("transformers", "lightning", "numpy"))]
        own = [one for one in heads if one.startswith("distill.")]
        assert not foreign, name
        assert all(one.startswith("distill.losses") or one == "distill.errors" for one in own), name
        if name.startswith("distill.losses"):
            assert "isinstance(" not in text, name


def test_only_the_command_line_knows_hydra():
    known = re.compile(r"^\s*(?:from|import) (hydra|omegaconf)", re.MULTILINE)
    for name, path in SOURCES.items():
        found = set(known.findall(path.read_text(encoding="utf-8")))
        if name == "distill.schema":
            assert found <= {"hydra", "omegaconf"}  # it registers the dataclasses
        elif CONFIGURATION.fullmatch(name):
            assert found <= {"omegaconf"}, name  # MISSING alone
        elif name not in DOOR:
            assert not found, name


def test_no_function_takes_a_configuration_that_no_type_checker_sees_through():
    for name, path in SOURCES.items():
        if name not in DOOR:
            assert "DictConfig" not in path.read_text(encoding="utf-8"), name


def test_the_road_of_the_readme_is_the_table():
    from distill.pipelines.road import STAGES, VERBS
    from distill.schema import VERBS as SAID

    assert VERBS.keys() == SAID.keys()
    drawn = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, stage in STAGES.items():
        line = f"{name} <- ({', '.join(stage.reads)})"
        assert line in drawn, line
