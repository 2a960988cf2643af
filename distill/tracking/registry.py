"""The model registry: a champion becomes a version; servers fetch `models:/NAME@champion`."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distill.errors import UserError
from distill.files import file_sha256
from distill.tracking.config import TrackingConfig
from distill.tracking.outbox import answering
from distill.tracking.runs import Run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

ARTIFACT_PATH = "champion"
CONTENT_TAG = "distill.content_sha256"
COMMIT_TAG = "git_commit"


@dataclass(frozen=True)
class Champion:
    """A registered version. `model_uri` follows the alias, `version_uri` never moves.

    On ranks other than zero, which register nothing, `version` is None and both are the alias's.
    """

    model_uri: str
    version_uri: str
    version: int | None
    is_new: bool


def register_champion(
    folder: Path, tracking: TrackingConfig, tags: Mapping[str, str], run: Run
) -> Champion:
    """Log a Hugging Face folder into the run, make a version of it and move the alias to it.

    The alias moves last, when every file is seen in the store with its size. The same files with
    the same tags are not registered twice: the alias goes (back) to the version there is.
    tracking: with the model's name set, as by `TrackingConfig.for_target`.
    Raises UserError for a folder without config.json, TrackingAwayError when MLflow is away.
    """
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is no model folder (no config.json): register a draft's folder.")
    name = tracking.registered_model
    assert name is not None, "TrackingConfig.for_target gives the registered model a name"
    by_alias = f"models:/{name}@{tracking.alias}"
    if run.silent:
        return Champion(by_alias, by_alias, version=None, is_new=False)
    with answering(run.tracking_uri):
        return _register(folder, name, tracking.alias, tags, run)


def _register(folder: Path, name: str, alias: str, tags: Mapping[str, str], run: Run) -> Champion:
    client = run.client
    _ensure_model(client, name)
    wanted = {**tags, CONTENT_TAG: content_sha256(folder)}
    version = _find_version(client, name, wanted, folder)
    is_new = version is None
    if version is None:
        run.log_folder(folder, ARTIFACT_PATH)
        client = run.client  # once more: it waits until the folder is sent
        _check_whole(client, run.id, folder)
        source = f"{client.get_run(run.id).info.artifact_uri}/{ARTIFACT_PATH}"
        version = client.create_model_version(name, source, run_id=run.id, tags=wanted)
    client.set_registered_model_alias(name, alias, version.version)
    return Champion(
        model_uri=f"models:/{name}@{alias}",
        version_uri=f"models:/{name}/{version.version}",
        version=int(version.version),
        is_new=is_new,
    )


def content_sha256(folder: Path) -> str:
    """Hash of all files below the folder: names and bytes, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(_sizes(folder)):
        digest.update(f"{name}\0{file_sha256(folder / name)}\n".encode())
    return digest.hexdigest()


def _ensure_model(client: "MlflowClient", name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as problem:
        if problem.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _find_version(
    client: "MlflowClient", name: str, wanted: Mapping[str, str], folder: Path
) -> "ModelVersion | None":
    """The newest version with these tags whose files are still all there.

    The commit is no part of it: a later commit that makes the same draft makes no new version.
    """
    versions = client.search_model_versions(f"name = '{name}'")
    for version in sorted(versions, key=lambda version: int(version.version), reverse=True):
        same = all(version.tags.get(k) == value for k, value in wanted.items() if k != COMMIT_TAG)
        if same and version.run_id and not _missing(client, version.run_id, folder):
            return version
    return None


def _check_whole(client: "MlflowClient", run_id: str, folder: Path) -> None:
    missing = _missing(client, run_id, folder)
    if missing:
        raise UserError(
            f"MLflow's artifact store lacks {', '.join(missing)} after the upload, so the alias "
            "was not moved: make room there and run the same command again"
        )


def _missing(client: "MlflowClient", run_id: str, folder: Path) -> list[str]:
    """Files of the folder that the run's artifacts lack or hold with another size."""
    stored = _stored_sizes(client, run_id, ARTIFACT_PATH)
    local = _sizes(folder)
    return [name for name in sorted(local) if stored.get(f"{ARTIFACT_PATH}/{name}") != local[name]]


def _stored_sizes(client: "MlflowClient", run_id: str, path: str) -> dict[str, int | None]:
    sizes: dict[str, int | None] = {}
    for entry in client.list_artifacts(run_id, path):
        if entry.is_dir:
            sizes |= _stored_sizes(client, run_id, entry.path)
        else:
            sizes[entry.path] = entry.file_size
    return sizes


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
