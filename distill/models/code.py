"""Models that bring Python code of their own: it runs only from folders whose code is allowed.

`trust_remote_code` of a model's configuration allows its folder, once, where the folder is found.
Everything that transformers opens by a folder's files is opened through here, and always says
whether code may run: left open, transformers would ask at the terminal.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.errors import UserError
from distill.models.folder import model_json
from distill.text import one_line

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

_ALLOWED: set[Path] = set()
DYNAMIC = "transformers_modules"
"""The package into which transformers puts a folder's own code."""


def allow(folder: Path) -> None:
    """Let this process run the code in a model's folder."""
    _ALLOWED.add(folder.resolve())


def allowed(folder: Path) -> bool:
    return folder.resolve() in _ALLOWED


def auto_config(folder: Path) -> "PretrainedConfig":
    """The folder's configuration object.

    Raises:
        UserError: it needs code that is not allowed.
    """
    from transformers import AutoConfig

    return _open(AutoConfig.from_pretrained, folder, "model")


def auto_tokenizer(folder: Path) -> "PreTrainedTokenizerBase":
    """The folder's tokenizer.

    Raises:
        UserError: it needs code that is not allowed.
    """
    from transformers import AutoTokenizer

    return _open(AutoTokenizer.from_pretrained, folder, "tokenizer")


def check_code(folder: Path, role: str) -> None:
    """Refuse a model whose configuration cannot be read, or needs code, before weights are loaded.

    Many folders name code for a family that transformers knows by itself: then theirs is not used.
    role: target, draft or candidate.

    Raises:
        UserError: the code is needed and not allowed, or transformers cannot read the files.
    """
    from transformers import AutoModelForCausalLM

    config = auto_config(folder)
    known: Any = AutoModelForCausalLM._model_mapping
    if _names_code(folder, "config.json") and not allowed(folder) and type(config) not in known:
        raise _refusal(folder, role)
    if role == "target" or _names_code(folder, "tokenizer_config.json"):
        auto_tokenizer(folder)


def is_own_code(config: "PretrainedConfig") -> bool:
    """Whether the class of a configuration object came with its folder."""
    return type(config).__module__.startswith(DYNAMIC)


def _names_code(folder: Path, name: str) -> bool:
    return "auto_map" in model_json(folder, name)


def _open(from_pretrained: Any, folder: Path, what: str) -> Any:
    try:
        return from_pretrained(folder, trust_remote_code=allowed(folder))
    except Exception as error:  # a bad value in the files ends in an error of any kind
        if "trust_remote_code" in str(error):
            raise _refusal(folder, what) from error
        reason = one_line(str(error)) or type(error).__name__
        raise UserError(
            f"transformers cannot read the {what} of {folder} ({reason}): fetch the model again"
        ) from error


def _refusal(folder: Path, what: str) -> UserError:
    return UserError(
        f"{what}: {folder} needs Python code of its own, which is not run: read it, then set "
        "target.trust_remote_code=true, or draft.model.trust_remote_code=true for a draft"
    )
