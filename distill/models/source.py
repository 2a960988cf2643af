"""From any source to a local Hugging Face folder. No torch at import.

What is fetched or converted lands in the cache once, under a name that its content decides, written
to a partial folder and renamed; a file lock keeps two processes from doing the same work.
"""

import hashlib
import re
from pathlib import Path

from distill.errors import UserError
from distill.files import whole_folder
from distill.locks import locked
from distill.models import embedded
from distill.models.config import ModelConfig
from distill.models.folder import safetensors_files
from distill.models.gguf import convert_once, gguf_folder
from distill.models.whole import check_links, check_whole

_HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model", "spiece.model"]
# Second copies of the weights in formats that transformers does not read.
_HUB_IGNORED = ["original/*", "consolidated*", "onnx/*", "openvino/*"]


def resolve_model(model: ModelConfig, cache: Path, *, weights: bool = True) -> Path:
    """Return the local folder of `model`, fetching or converting it first where needed.

    Raises:
        UserError: unknown source, nothing at that place, or a fetch that failed; nothing was
            loaded.
    """
    cache = cache.expanduser()
    match model.source:
        case "hub":
            return _from_hub(model, weights)
        case "folder":
            return _from_folder(model.id)
        case "gguf":
            return gguf_folder(Path(model.id).expanduser(), cache)
        case "mlflow":
            return _from_mlflow(model.id, cache)
        case "embedded":
            return convert_once(
                embedded.fetch(cache), f"embedded-{embedded.GGUF_SHA256[:12]}", cache
            )
        case other:
            raise UserError(
                f"model source {other!r} is unknown: use hub, folder, gguf, mlflow or embedded."
            )


def check_model_folder(folder: Path, role: str) -> None:
    """Refuse a folder that cannot be loaded, before torch is imported. `role`: target or draft.

    Raises:
        UserError: no configuration, no weights in safetensors, no tokenizer, or a damaged file.
    """
    check_links(folder)
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{role}: {folder} has no config.json: name a Hugging Face model folder "
            "(for a .gguf file set source=gguf)."
        )
    if not safetensors_files(folder):
        _refuse_without_weights(folder, role)
    if not (folder / "tokenizer.json").is_file():
        raise UserError(
            f"{role}: {folder} has no tokenizer.json: write it with "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
        )
    check_whole(folder)


def _refuse_without_weights(folder: Path, role: str) -> None:
    if list(folder.glob("*.bin")) or list(folder.glob("*.pt")):
        raise UserError(
            f"{role}: {folder} has only pickled weights and safetensors are needed: convert with "
            "AutoModelForCausalLM.from_pretrained(folder, dtype='auto').save_pretrained(folder)."
        )
    raise UserError(
        f"{role}: {folder} has no weights (*.safetensors): copy them there or fetch it again."
    )


def _from_folder(id: str) -> Path:
    folder = Path(id).expanduser()
    if not folder.is_dir():
        raise UserError(f"model folder {folder} does not exist: check the path, or set source=hub.")
    return folder


def _from_hub(model: ModelConfig, weights: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    patterns = [*_HUB_FILES, "*.py"] if model.trust_remote_code else _HUB_FILES
    try:
        folder = snapshot_download(
            model.id,
            revision=model.revision,
            allow_patterns=patterns,
            ignore_patterns=_HUB_IGNORED if weights else [*_HUB_IGNORED, "*.safetensors"],
        )
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(
            f"the hub has no model {model.id!r} that you may read: check the name; for a gated "
            "model accept its terms and log in with `hf auth login`."
        ) from error
    except RevisionNotFoundError as error:
        raise UserError(
            f"{model.id} has no revision {model.revision!r}: name a branch, tag or commit of it."
        ) from error
    except OSError as error:  # every transport error of the client is one; so is "not in the cache"
        raise UserError(
            f"cannot fetch {model.id} from the hub ({_first_line(error)}): fetch it where there is "
            "network access and set source=folder, or use target=smollm2_135m."
        ) from error
    return Path(folder)


def _from_mlflow(uri: str, cache: Path) -> Path:
    if not uri.startswith(("models:/", "runs:/")):
        raise UserError(
            f"{uri!r} is no MLflow model: use models:/NAME@ALIAS, models:/NAME/VERSION "
            "or runs:/RUN/PATH."
        )
    import mlflow
    import mlflow.artifacts
    from mlflow.exceptions import MlflowException

    try:
        fixed, stamp = _pin(uri)
        key = f"{mlflow.get_registry_uri()} {fixed} {stamp}"
        folder = cache / f"mlflow-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache / f"{folder.name}.lock", f"fetching {uri}"):
            if not folder.is_dir():
                with whole_folder(folder) as partial:
                    mlflow.artifacts.download_artifacts(artifact_uri=fixed, dst_path=str(partial))
                    _check_download(partial, uri)
    except (MlflowException, OSError) as error:
        raise UserError(
            f"cannot read {uri} ({_first_line(error)}): check the name and tracking.uri."
        ) from error
    return _model_root(folder)


def _pin(uri: str) -> tuple[str, str]:
    """Return an address that never moves, and its time: an alias may point elsewhere tomorrow."""
    from mlflow import MlflowClient

    if match := re.fullmatch(r"models:/([^/@]+)@(.+)", uri):
        version = MlflowClient().get_model_version_by_alias(match[1], match[2])
    elif match := re.fullmatch(r"models:/([^/@]+)/(\d+)", uri):
        version = MlflowClient().get_model_version(match[1], match[2])
    else:
        return uri, ""
    return f"models:/{version.name}/{version.version}", str(version.creation_timestamp)


def _check_download(folder: Path, uri: str) -> None:
    """Keep nothing in the cache that is no model: it would be found there for ever."""
    if not (_model_root(folder) / "config.json").is_file():
        raise UserError(
            f"{uri} has no files of a model (no config.json came): check its artifacts in MLflow, "
            "or register the draft again."
        )


def _model_root(folder: Path) -> Path:
    """An artifact path is downloaded as a folder of its own name: go down to where the model is."""
    if not (folder / "config.json").exists():
        nested = sorted(path.parent for path in folder.glob("*/config.json"))
        if len(nested) == 1:
            return nested[0]
    return folder


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
