"""Which measurements are independent of each other: the units that intervals are made over.

Windows of one file read alike, and so do the turns of one conversation; batches that hold windows
of the same file are no fresh evidence of each other. Resampled as if they were, they make an
interval too narrow.
"""

import re
from collections.abc import Callable, Collection, Mapping

_WINDOW_OR_TURN = re.compile(r"[@:#]\d+$")


def source_of(id: str) -> str:
    """The file or conversation that a row is cut from, by the row's id.

    `data/encode.py` appends `@start` or `:start` to the id of a document for each window of it, and
    `#end` to that of a conversation for each earlier answer. An id of the user's own may end alike
    ("math:12"): where the corpus knows the rows' group (`Row.group`), that is to be used instead.
    """
    return _WINDOW_OR_TURN.sub("", id)


def independent_units(
    units: Mapping[str, Collection[str]], source: Callable[[str], str] = source_of
) -> dict[str, str]:
    """The name of the independent unit that each timed unit belongs to.

    units: the ids of the conversations that shared a clock, by unit. Timed units with a source in
    common, directly or through others, are one independent unit; the first of their names by
    alphabet names it.
    """
    leader: dict[str, str] = {}

    def find(unit: str) -> str:
        while leader[unit] != unit:
            unit = leader[unit]
        return unit

    holder: dict[str, str] = {}
    for unit in sorted(units):
        leader[unit] = unit
        for one in sorted({source(id) for id in units[unit]}):
            first, second = sorted((find(holder.setdefault(one, unit)), find(unit)))
            leader[second] = first
    return {unit: find(unit) for unit in units}
