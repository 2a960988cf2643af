"""A champion becomes the folder that servers read: written whole, checked, then put in place."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from distill.errors import UserError
from distill.files import whole_folder, write_text
from distill.models.folder import folder_is_head
from distill.models.parallel import folder_mask
from distill.serving import eagle3, model_card, parallel, transformers
from distill.serving.config import ExportConfig


def export_draft(
    champion_folder: Path,
    destination: Path,
    *,
    target_id: str,
    target_folder: Path,
    numbers: Mapping[str, Any],
    measurement: Mapping[str, Any],
    lineage: Mapping[str, Any],
    dtype: str = "bfloat16",
) -> Path:
    """Write the Hugging Face folder of a draft, with its model card, and prove that it reloads.

    Args:
        champion_folder: the draft that evaluation chose.
        destination: made or replaced as a whole.
        target_id: how the target is named to a server: a hub name or a folder.
        target_folder: where the tokenizer, template and EOS list come from.
        numbers: measured results, named as in `summary.json`; `num_draft_tokens` is needed.
        measurement: how they were measured (prompts, sampling, hardware, …), for the card.
        lineage: what the draft was made from (revisions and hashes), for the card.
        dtype: of the weights: bfloat16, float16 or float32.

    Raises:
        UserError: unknown dtype; weights that float16 cannot hold; a destination that is not an
            earlier export.
        ExportError: the written folder does not give the champion's logits or the target's tokens.
    """
    torch_dtype = export_dtype(dtype)
    if destination.exists() and not (destination / "config.json").is_file():
        raise UserError(f"{destination} exists and is no exported draft: choose another folder.")
    kind = serving_of(champion_folder)
    with whole_folder(destination) as partial:
        kind.write(
            champion_folder,
            partial,
            target=target_folder,
            num_draft_tokens=int(numbers["num_draft_tokens"]),
            confidence_threshold=numbers.get("confidence_threshold", 0.0),
            dtype=torch_dtype,
        )
        card = model_card.render(
            name=destination.name,
            target_id=target_id,
            dtype=dtype,
            description=kind.DESCRIPTION,
            serve=kind.serve,
            numbers=numbers,
            measurement=measurement,
            lineage=lineage,
        )
        write_text(partial / "README.md", card)
        kind.check(partial, champion_folder, target_folder, dtype=torch_dtype)
    return destination


def serving_of(folder: Path) -> ModuleType:
    """The file that writes, checks and proves this kind of draft."""
    if folder_is_head(folder):
        return eagle3
    return transformers if folder_mask(folder) is None else parallel


def export_dtype(name: str) -> torch.dtype:
    """The type of the exported weights.

    Raises:
        UserError: servers do not load it.
    """
    ExportConfig(name)
    return getattr(torch, name)
