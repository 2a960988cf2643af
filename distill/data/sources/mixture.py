"""`mixture`: several sources at once, each with its share of the training examples."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from distill.data.sources.rows import Problem, Row, Source
from distill.errors import UserError


@dataclass
class MixtureSource:
    """parts: name → `source` and `weight`. Shares are weights over their sum, of examples.

    The corpus ends where the first part runs dry, so that the shares hold. A training row that
    opens like another part's held-out row is left out.
    """

    parts: Mapping[str, Mapping[str, Any]]

    def check(self) -> None:
        """Raise a UserError for fewer than two parts, a weight of 0, or a part that cannot work."""
        if len(self.parts) < 2:
            raise UserError("data.source.parts needs at least two sources, each with a weight")
        for name, part in self.parts.items():
            if not part["weight"] > 0:
                raise UserError(
                    f"data.source.parts.{name}.weight is {part['weight']}; it must be above 0, or "
                    f"drop the part with ~data.source.parts.{name}"
                )
            self._source(name).check()

    def rows(self) -> Iterator[Row]:
        """The rows of all parts, each with its part and weight."""
        return iter(self._read[0])

    @property
    def problems(self) -> list[Problem]:
        """What was skipped or mended in the parts, or left out for another's held-out rows."""
        return self._read[1]

    def fingerprint(self) -> dict[str, Any]:
        """Every part's own, with its weight."""
        parts = {
            name: {"weight": part["weight"], **self._source(name).fingerprint()}
            for name, part in self.parts.items()
        }
        return {"source": "mixture", "parts": parts}

    def _source(self, name: str) -> Source:
        return self.parts[name]["source"]

    @cached_property
    def _read(self) -> tuple[list[Row], list[Problem]]:
        found = {name: list(self._source(name).rows()) for name in self.parts}
        held_out = {
            r.group: name for name, rows in found.items() for r in rows if r.split != "train"
        }
        rows: list[Row] = []
        problems = [problem for name in self.parts for problem in self._source(name).problems]
        for name, part in self.parts.items():
            for number, row in enumerate(found[name], start=1):
                if row.split == "train" and held_out.get(row.group, name) != name:
                    reason = f"same prompt as a held-out row of {held_out[row.group]}"
                    problems.append(Problem(f"{name} ({row.id})", number, reason))
                else:
                    rows.append(
                        replace(row, id=f"{name}/{row.id}", part=name, weight=part["weight"])
                    )
        return rows, problems
