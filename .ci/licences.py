"""The licence of every package that the product needs, as the packages themselves state it.

    python .ci/licences.py

lists name, version and licence; status 1 where a package states none.
"""

import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PRODUCT = "distill-draft"
LONGEST = 60
TEXTS = {"Permission is hereby granted, free of charge": "MIT"}
"""What stands in the text of a licence that does not name itself."""


def needed(name: str) -> dict[str, Distribution]:
    """Name → installed distribution, of all that `name` needs here, without extras."""
    found: dict[str, Distribution] = {}
    waiting = [name]
    while waiting:
        package = canonicalize_name(waiting.pop())
        if package in found:
            continue
        try:
            found[package] = distribution(package)
        except PackageNotFoundError:  # an optional one of another platform
            continue
        for text in found[package].requires or []:
            asked = Requirement(text)
            if asked.marker is None or asked.marker.evaluate({"extra": ""}):
                waiting.append(asked.name)
    del found[canonicalize_name(name)]
    return dict(sorted(found.items()))


def licence(package: Distribution) -> str:
    """The expression, else the classifiers, else the field, else what its licence file says."""
    stated = package.metadata
    if expression := stated.get("License-Expression"):
        return expression
    classes = [one for one in stated.get_all("Classifier") or [] if one.startswith("License ::")]
    named = [name for one in classes if (name := one.rpartition(" :: ")[2]) != "OSI Approved"]
    if named:
        return " and ".join(named)
    files = [file for file in package.files or [] if file.stem.upper() in ("LICENSE", "LICENCE")]
    texts = [stated.get("License") or "", *(file.read_text(encoding="utf-8") for file in files)]
    text = next((text.strip() for text in texts if text.strip()), "")
    of_text = [name for words, name in TEXTS.items() if words in text]
    return of_text[0] if of_text else text.partition("\n")[0][:LONGEST]


def main() -> int:
    """Print the table."""
    silent = 0
    for name, package in needed(PRODUCT).items():
        said = licence(package)
        silent += not said
        sys.stdout.write(f"{name:<36}{package.version:<18}{said or 'NOT STATED'}\n")
    return int(bool(silent))


if __name__ == "__main__":
    sys.exit(main())
