"""Which measurements are independent of each other: the units that intervals are made over.

Windows of one file read alike, and so do the turns of one conversation; batches that hold windows
of the same file are no fresh evidence of each other. Resampled as if they were, they make an
interval too narrow.
"""

from collections.abc import Collection, Mapping

from distill.data.sources.rows import CUT


def source_of(id: str, group: str = "") -> str:
    """What a row was cut from: its group, or else its file or conversation by the row's id.

    group: of `Row.group`; empty where the corpus is older than groups, or measurements are. Then
    the id tells, unless an id of the user's own ends like that of a window, as "math:12" does.
    """
    return group or CUT.sub("", id)


def independent_units(units: Mapping[str, Collection[str]]) -> dict[str, str]:
    """The name of the independent unit that each timed unit belongs to.

    units: the sources (`source_of`) of the conversations that shared a clock, by unit. Timed units
    with a source in common, directly or through others, are one independent unit; the first of
    their names by alphabet names it.
    """
    leader: dict[str, str] = {}

    def find(unit: str) -> str:
        while leader[unit] != unit:
            unit = leader[unit]
        return unit

    holder: dict[str, str] = {}
    for unit in sorted(units):
        leader[unit] = unit
        for source in sorted(set(units[unit])):
            first, second = sorted((find(holder.setdefault(source, unit)), find(unit)))
            leader[second] = first
    return {unit: find(unit) for unit in units}
