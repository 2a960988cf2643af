"""The wheel holds one import name, so that it can lie beside Hugging Face's `evaluate`."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import distill

ROOT = Path(__file__).parent.parent


def test_top_level_folders_are_parts_of_the_package():
    package = Path(distill.__file__).parent
    for name in ("conf", "pipelines", "evaluate"):
        assert (package / name).resolve() == ROOT / name
    assert not (ROOT / "evaluate" / "__init__.py").exists()
    assert not (ROOT / "pipelines" / "__init__.py").exists()


@pytest.mark.slow
def test_wheel_holds_only_distill_and_all_of_it(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", tmp_path, ROOT]
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"distill"}
    folders = (ROOT / "evaluate", ROOT / "pipelines")
    sources = {p.relative_to(ROOT) for folder in folders for p in folder.rglob("*.py")}
    assert {f"distill/{path}" for path in sources} <= names
    configs = {p.relative_to(ROOT) for p in (ROOT / "conf").rglob("*.yaml")}
    assert {f"distill/{path}" for path in configs} <= names
    report = {p.relative_to(ROOT) for p in (ROOT / "evaluate" / "report").glob("*.*")}
    assert {f"distill/{path}" for path in report} <= names
