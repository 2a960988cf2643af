"""How numbers and names are written in reports and tables."""

import math
from collections.abc import Mapping
from pathlib import Path

NOTHING = "–"


def number(value: float | None, digits: int = 2) -> str:
    """Two decimals; a dash for what was not measured."""
    return NOTHING if value is None or math.isnan(value) else f"{value:.{digits}f}"


def interval(value: Mapping[str, float | None], digits: int = 2) -> str:
    """`1.16 [1.05, 1.26]`."""
    low, high = number(value["low"], digits), number(value["high"], digits)
    return f"{number(value['value'], digits)} [{low}, {high}]"


def short_name(model: str) -> str:
    """A hub name as it is; of a folder only its last part."""
    return Path(model).name if model.startswith(("/", ".", "~")) else model


def number_of(value: float | None) -> float:
    """The value as it is; for what was never counted NaN, which is not drawn."""
    return float("nan") if value is None else value
