"""A parallel draft as the folder that vLLM and TensorRT-LLM load: any draft's, and a mask token.

Its proof runs in this project's own engine: transformers drafts with it token by token only.
"""

from pathlib import Path

import torch

from distill.models.config import MASK_KEY
from distill.models.parallel import folder_mask
from distill.serving import transformers, vllm
from distill.serving.own_engine import prove

__all__ = ["DESCRIPTION", "check", "prove", "serve", "write"]

DESCRIPTION = (
    "A small model that guesses the next tokens of `{target}` for speculative decoding, all of a "
    "round in one pass (PARD): behind the text it reads mask tokens, whose id is `pard_token` in "
    "config.json. The target checks every guess, so its output does not change. Weights in "
    "{dtype}; the tokenizer and chat template are the target's own files. Not meant to be used "
    "alone."
)
write = transformers.write


def check(folder: Path, champion: Path, target: Path, *, dtype: torch.dtype) -> None:
    """As of any separate draft, and the champion's mask token. Raises as that does."""
    transformers.check(folder, champion, target, dtype=dtype)
    if folder_mask(folder) != folder_mask(champion):
        raise transformers.ExportError(f"{folder}/config.json lacks the champion's {MASK_KEY}")


def serve(target: str, draft: str, num_draft_tokens: int) -> str:
    """The card's section: how engines are started with this draft."""
    command = vllm.command(target, draft, num_draft_tokens, parallel=True)
    return (
        f"### vLLM\n\n```sh\n{command}\n```\n\n"
        "This command was written from the engine's documentation and has not been run here. "
        "Without `parallel_drafting`, and in engines that do not know it, this is an ordinary "
        "draft that guesses one token a pass."
    )
