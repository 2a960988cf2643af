"""What a report is drawn from: plain data, no model and no configuration object."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distill.evaluate.records import Measurement


@dataclass(frozen=True)
class Curve:
    """One metric over supervised tokens trained on."""

    tokens: list[float]
    values: list[float]


@dataclass(frozen=True)
class Training:
    """What was logged of a training.

    curves: by metric name. checkpoints: the content of each candidate's metrics.json by its name.
    """

    curves: Mapping[str, Curve] = field(default_factory=dict)
    checkpoints: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """A command line and what it is for."""

    purpose: str
    line: str


@dataclass(frozen=True)
class Facts:
    """Everything that a report shows.

    evaluation: as `evaluate.outcome` lays it out. rows: its measurements.

    certificate: the short form of this very pair's, or None. lineage: name to value, in the order
    shown; config: the configuration as YAML.
    """

    evaluation: Mapping[str, Any]
    rows: Sequence[Measurement]
    lineage: Mapping[str, Any]
    commands: Sequence[Command]
    config: str
    training: Training = Training()
    certificate: str | None = None
