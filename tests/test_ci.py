"""What CI asks of the packages that are installed."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


def script(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def package(name: str, *flaws: str) -> dict:
    found = [{"id": one, "fix_versions": ["2.0"]} for one in flaws]
    return {"name": name, "version": "1.0", "vulns": found}


@pytest.mark.parametrize(
    ("dependencies", "lines", "status"),
    [
        ([package("a"), package("b")], ["audit: 2 packages checked, 0 known vulnerabilities"], 0),
        (
            [package("a", "X-1"), {"name": "b", "skip_reason": "not found"}],
            [
                "a 1.0: X-1, mended in 2.0",
                "audit: 1 packages checked, 1 known vulnerabilities, 1 packages NOT checked "
                "(unknown to the service)",
            ],
            1,
        ),
    ],
)
def test_an_audit_fails_for_what_is_known_and_counts_what_is_not(dependencies, lines, status):
    assert script("audit").verdict(dependencies) == (lines, status)


def test_every_package_that_is_needed_states_a_licence():
    licences = script("licences")
    found = {name: licences.licence(one) for name, one in licences.needed("distill-draft").items()}
    assert {"torch", "transformers", "numpy", "huey"} <= found.keys()
    assert [name for name, said in found.items() if not said] == []
    assert found["huey"] == "MIT"  # its metadata does not say: its text does
