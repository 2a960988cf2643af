"""Known vulnerabilities of the versions in constraints.txt, by pip-audit.

    python .ci/audit.py [REQUIREMENTS]

ends with status 1 where there are any. Where no service answers, as behind a mirror that only has
the packages, a line says so, and what was not checked is never called safe.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent.parent
FIRST = "pip==26.0"
"""Asked for alone before all others: where even this is not known, nobody answers."""


def audit(requirements: Path, folder: Path) -> list[dict]:
    """What pip-audit says of each requirement; empty where it cannot ask."""
    found = folder / "audit.json"
    found.unlink(missing_ok=True)
    options = ["--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json"]
    command = [sys.executable, "-m", "pip_audit", "-r", str(requirements), *options]
    try:
        subprocess.run([*command, "-o", str(found)], capture_output=True, timeout=600)
    except subprocess.TimeoutExpired:
        return []
    return json.loads(found.read_text())["dependencies"] if found.exists() else []


def verdict(dependencies: list[dict]) -> tuple[list[str], int]:
    """Lines to print and the status to end with."""
    known = [one for one in dependencies if "skip_reason" not in one]
    bad = [
        f"{one['name']} {one['version']}: {flaw['id']}"
        + (f", mended in {', '.join(flaw['fix_versions'])}" if flaw["fix_versions"] else "")
        for one in known
        for flaw in one["vulns"]
    ]
    said = f"audit: {len(known)} packages checked, {len(bad)} known vulnerabilities"
    if skipped := len(dependencies) - len(known):
        said += f", {skipped} packages NOT checked (unknown to the service)"
    return [*bad, said], int(bool(bad))


def main() -> int:
    """Audit, and print what was found."""
    requirements = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "constraints.txt"
    with tempfile.TemporaryDirectory() as scratch:
        probe = Path(scratch) / "probe.txt"
        probe.write_text(FIRST)
        if not any("skip_reason" not in one for one in audit(probe, Path(scratch))):
            sys.stdout.write("audit: NOT CHECKED, no vulnerability service answers here\n")
            return 0
        lines, status = verdict(audit(requirements, Path(scratch)))
    sys.stdout.write("\n".join(lines) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
