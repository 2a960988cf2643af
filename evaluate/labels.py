"""Names of trainings that are measured side by side: the settings in which they differ."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from distill.artifacts import MANIFEST

FOREIGN = re.compile(r"[^\w\-./: ]")
COMMON = "base"
"""A training without a difference to the most common settings."""


def labels(runs: Iterable[Path]) -> dict[Path, str]:
    """`setting:value …` of each training folder, of what is not as in most of them.

    Only of characters that MLflow takes in the name of a metric.

    Where two would be called the same, or a folder has no manifest, it is the folder's own name.
    """
    found = {run: _settings(run) for run in dict.fromkeys(runs)}
    known = [settings for settings in found.values() if settings]
    names = dict.fromkeys(name for settings in known for name in settings)
    usual = {name: _usual(name, known) for name in names}
    given = {run: _label(settings, usual) for run, settings in found.items()}
    often = Counter(given.values())
    return {
        run: label if found[run] and often[label] == 1 else run.name for run, label in given.items()
    }


def _settings(run: Path) -> dict[str, str]:
    path = run / MANIFEST
    if not path.exists():
        return {}
    manifest = json.loads(path.read_text(encoding="utf-8"))
    inputs = {stage: digest[:12] for stage, digest in manifest["inputs"].items()}
    return dict(_flat("", manifest["settings"])) | inputs


def _flat(prefix: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else str(name), one)
    else:
        yield prefix, str(value)


def _usual(name: str, settings: Iterable[Mapping[str, str]]) -> str | None:
    """The most common value, None standing for its absence; the first of equals."""
    return Counter(one.get(name) for one in settings).most_common(1)[0][0]


def _label(settings: Mapping[str, str], usual: Mapping[str, str | None]) -> str:
    """What a training lacks of the others, such as a cache, is `none`."""
    different = [
        f"{name}:{settings.get(name, 'none')}"
        for name in usual
        if usual[name] != settings.get(name)
    ]
    return FOREIGN.sub("_", " ".join(different)) or COMMON
