"""The drafts to measure: where they lie, what they are called and what their training knows."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from distill.artifacts import MANIFEST
from distill.errors import UserError
from distill.files import read_json
from distill.models.identity import ModelIdentity
from distill.models.source import check_model_folder
from distill.models.whole import has_nan
from distill.schema import ModelConfig
from distill.speculative.sampling import Sampling
from distill.training.callbacks.candidates import (
    CANDIDATES,
    METRICS,
    candidate_folders,
    training_of,
)

log = logging.getLogger(__name__)
FOREIGN = re.compile(r"[^\w\-./: ]")
COMMON = "base"
"""The name of a training that does not differ from the most common settings."""


@dataclass(frozen=True)
class HeldOutScores:
    """Means over the tokens of held-out rows that draft and target both read; none is decoded.

    kl: KL(p‖q) in nats. alpha: Σ_x min(p, q). agreement: share of tokens with the same argmax.
    """

    kl: float
    alpha: float
    agreement: float

    def at(self, sampling: Sampling) -> float:
        """The acceptance that they foretell: greedy decoding accepts where the argmaxes agree."""
        return self.agreement if sampling.greedy else self.alpha


@dataclass(frozen=True)
class Candidate:
    """A draft that is measured.

    sha256: of what it computes, see `ModelIdentity`. metrics: what its training measured on its
    validation rows; empty for a draft from elsewhere. training: the folder of its training; None if
    that is not known, as of a checkpoint that was moved: its neighbours may have other validation
    rows.
    """

    name: str
    folder: Path
    sha256: str
    weights_sha256: str
    parameters: int
    metrics: dict[str, Any]
    training: Path | None


def make_candidates(
    folders: Sequence[Path], identify: Callable[[Path], ModelIdentity]
) -> list[Candidate]:
    """Candidates in the order of their folders; UserError for one draft twice."""
    names = candidate_names(folders)
    return [
        _candidate(name, folder, identify(folder))
        for name, folder in zip(names, folders, strict=True)
    ]


def drafts_at(place: str, fetch: Callable[[ModelConfig], Path]) -> list[Path]:
    """The draft at a place, or all of a training's folder, or of a folder of trainings.

    fetch: makes a folder of a registered model, and checks one that is a folder already.
    """
    root = Path(place).expanduser()
    if not is_registered(place) and root.is_dir() and not (root / "config.json").exists():
        runs = sorted(path.parent for path in root.glob(f"*/{MANIFEST}"))
        of_runs = [draft for run in runs for draft in candidate_folders(run / CANDIDATES)]
        found = candidate_folders(root) + candidate_folders(root / CANDIDATES) + of_runs
        if found:
            return found
    return [fetch(ModelConfig("mlflow" if is_registered(place) else "folder", place))]


def usable_drafts(
    places: Iterable[str], folders_at: Callable[[str], list[Path]]
) -> tuple[list[Path], list[UserError]]:
    """Folders of the drafts at the places, and what is wrong with those that are damaged."""
    found: list[Path] = []
    damaged: list[UserError] = []
    for place in places:
        try:
            folders = folders_at(place)
        except UserError as error:
            damaged.append(error)
            continue
        for folder in folders:
            try:
                check_model_folder(folder, "candidate")
                if (folder / METRICS).exists():
                    read_json(folder / METRICS)
                found.append(folder)
            except UserError as error:
                damaged.append(error)
    return found, damaged


def finite(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those whose weights are all finite numbers; the others are said.

    Raises:
        UserError: none is left.
    """
    good = [one for one in candidates if not has_nan(one.folder)]
    for one in candidates:
        if one not in good:
            log.warning("left out: %s has weights that are no finite numbers", one.folder)
    if not good:
        raise UserError(
            f"{candidates[0].folder} has weights that are no finite numbers: train it anew, with a "
            "lower optimizer.lr"
        )
    return good


def is_registered(place: str) -> bool:
    return place.startswith(("models:/", "runs:/"))


def candidate_names(folders: Sequence[Path]) -> list[str]:
    """Folder names; where two trainings wrote the same one, after what tells them apart."""
    often = Counter(folder.name for folder in folders)
    trainings = training_names(_run(folder) for folder in folders)
    names = [
        folder.name if often[folder.name] == 1 else f"{trainings[_run(folder)]}/{folder.name}"
        for folder in folders
    ]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(
            f"evaluate.candidates: two drafts are called {twice}; name each once or rename one"
        )
    return names


def training_names(runs: Iterable[Path]) -> dict[Path, str]:
    """Names of training folders: `setting:value …`, the settings that are not as in most of them.

    A name holds only characters that MLflow takes in the name of a metric. Where two would be
    called the same, or a folder has no manifest, it is the folder's own name.
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


def warn_of_other_flags(candidates: Iterable[Candidate], flags: str) -> None:
    """Warn of each draft that was trained with other flags of the template than it is served with.

    flags: in words, see `ModelIdentity`. A draft from elsewhere does not say.
    """
    for one in candidates:
        trained = one.metrics.get("template_flags")
        if trained is not None and trained != flags:
            log.warning(
                "%s was trained with %s and is measured with %s: it meets text that it did not "
                "learn; set target.chat_template_kwargs as for its training, or train it anew",
                one.name, trained or "no flags of the template", flags or "none",
            )  # fmt: skip


def scores_of_training(
    candidates: Sequence[Candidate], sampling: Sampling
) -> dict[str, HeldOutScores] | None:
    """What metrics.json says of each, where one training wrote all of them; else None.

    It is of temperature 1, so it says nothing of another one; argmaxes know no temperature.
    """
    if not (sampling.greedy or sampling.temperature == 1.0):
        return None
    names = [field.name for field in fields(HeldOutScores)]
    trainings = {one.training for one in candidates}
    if (
        trainings == {None}
        or len(trainings) > 1
        or any(not {*names} <= one.metrics.keys() for one in candidates)
    ):
        return None
    return {
        one.name: HeldOutScores(**{name: one.metrics[name] for name in names}) for one in candidates
    }


def _run(folder: Path) -> Path:
    return training_of(folder) or folder.parent


def _candidate(name: str, folder: Path, identity: ModelIdentity) -> Candidate:
    path = folder / METRICS
    metrics = read_json(path) if path.exists() else {}
    return Candidate(
        name,
        folder,
        identity.sha256,
        identity.weights_sha256,
        identity.parameters,
        metrics,
        training_of(folder.resolve()) if metrics else None,
    )


def _settings(run: Path) -> dict[str, str]:
    path = run / MANIFEST
    if not path.exists():
        return {}
    manifest = read_json(path)
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
    """The settings that are not the usual ones; one that a training lacks is `none`."""
    different = [
        f"{name}:{settings.get(name, 'none')}"
        for name in usual
        if usual[name] != settings.get(name)
    ]
    return FOREIGN.sub("_", " ".join(different)) or COMMON
