"""Whether a model folder's files are whole, told before any of them is loaded. No torch."""

from pathlib import Path

from distill.errors import UserError
from distill.models.folder import model_json, safetensors_files, safetensors_header

JSON_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
INDEX = "model.safetensors.index.json"


def check_links(folder: Path) -> None:
    """UserError for a link in the folder that leads nowhere."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() and not path.exists():
            raise UserError(
                f"{path} is a link to {path.readlink()}, which is not there: fetch the model again."
            )


def check_whole(folder: Path) -> None:
    """Refuse a folder with a file that was cut short, or that its index names in vain.

    Raises:
        UserError: the first such file, with the remedy.
    """
    for name in JSON_FILES:
        model_json(folder, name)
    for path in safetensors_files(folder):
        safetensors_header(path)
    for name in sorted(set(model_json(folder, INDEX).get("weight_map", {}).values())):
        if not (folder / name).is_file():
            raise UserError(f"{folder / name} is missing: fetch the model again.")


def has_nan(folder: Path) -> bool:
    """Whether a weight of the folder is not a finite number. Reads all of them."""
    from safetensors import safe_open

    for path in safetensors_files(folder):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # safe_open is no mapping
                tensor = file.get_tensor(name)
                if tensor.is_floating_point() and not tensor.isfinite().all():
                    return True
    return False
