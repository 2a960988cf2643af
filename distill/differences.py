"""How two sets of settings differ, in words for one line of a log."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

SHOWN = 4
"""At most so many differences or damaged files are named in one line."""
LONGEST_VALUE = 40
"""Characters; a setting with a longer value, such as a hash, is called `another`."""


def differences(had: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    """One `name is new (was old)` for each dotted name that is not the same in both."""
    for name in [*wanted, *(name for name in had if name not in wanted)]:
        if name not in wanted:
            yield f"{name} is gone (was {short(had[name])})"
        elif name not in had:
            yield f"{name} is {short(wanted[name])} (was not set)"
        elif had[name] != wanted[name]:
            old, new = short(had[name]), short(wanted[name])
            yield f"{name} is {new}" if "another" in (old, new) else f"{name} is {new} (was {old})"


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted names."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        nested = isinstance(value, Mapping) and value
        found |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return found


def short(value: Any) -> str:
    """The value as JSON, or `another` where that is long."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else "another"


def listed(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`; of many the first ones and the number of the others."""
    shown = [*items[:SHOWN], *([f"{len(items) - SHOWN} more"] if len(items) > SHOWN else [])]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if shown[1:] else shown)
