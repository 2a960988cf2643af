"""Which keys of the configuration decide what a stage makes: said where a key is declared.

A stage names the groups of the configuration that it reads. All keys of a group are then part of
its artifact's fingerprint, apart from those declared with `deciding`.
"""

from collections.abc import Callable
from dataclasses import MISSING, asdict, field, fields, is_dataclass
from typing import Any


def deciding(
    *stages: str,
    default: Any = MISSING,
    default_factory: "Callable[[], Any] | Any" = MISSING,
    only_with: str | None = None,
) -> Any:
    """Declare a dataclass field that decides the content of these stages only; of none if empty.

    only_with: another key of the group; while that one is false this one decides nothing.
    """
    metadata = {"decides": stages, "only_with": only_with}
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def content(group: Any, stage: str) -> dict[str, Any]:
    """The keys of a configuration dataclass that decide what `stage` makes, as plain values."""
    return {
        one.name: plain(getattr(group, one.name))
        for one in fields(group)
        if stage in one.metadata.get("decides", (stage,))
        and ((switch := one.metadata.get("only_with")) is None or getattr(group, switch))
    }


def plain(value: Any) -> Any:
    """A value of the configuration as dicts, lists and scalars."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value
