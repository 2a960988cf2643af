"""An EAGLE-3 head as the folder that vLLM, SGLang, llama.cpp and TensorRT-LLM load.

Its proof runs in this project's own engine: transformers loads no heads.
"""

from pathlib import Path

import torch

from distill.errors import UserError
from distill.models.draft import load_draft, save_draft
from distill.serving import sglang, vllm
from distill.serving.own_engine import prove
from distill.serving.transformers import ExportError, check_tokenizer

__all__ = ["DESCRIPTION", "check", "prove", "serve", "write"]

DESCRIPTION = (
    "An EAGLE-3 head that reads the hidden states of `{target}` and guesses its next tokens for "
    "speculative decoding: the target checks every guess, so its output does not change. It reads "
    "the states after layers 2, n/2 and n - 3 (the engines' default) and shares the target's "
    "embedding. Weights in {dtype}; the tokenizer and chat template are the target's own files."
)


def write(
    champion: Path,
    destination: Path,
    *,
    target: Path,
    num_draft_tokens: int,
    confidence_threshold: float = 0.0,
    dtype: torch.dtype,
) -> None:
    """Write weights in `dtype`, and the target's tokenizer, template and EOS list.

    No engine reads k or a threshold from a head's folder: they stand in the card's commands.
    """
    save_draft(
        load_draft(champion, dtype=torch.float32, device="cpu"), destination, target, dtype=dtype
    )


def check(folder: Path, champion: Path, target: Path, *, dtype: torch.dtype) -> None:
    """Same tensors, same tokenizer, and an embedding of the target that fits.

    Raises ExportError naming what differs, UserError for weights that `dtype` cannot hold.
    """
    check_tokenizer(folder, target)
    expected = load_draft(champion, dtype=dtype, device="cpu").state_dict()
    written = load_draft(folder, dtype=dtype, device="cpu").state_dict()
    for name, tensor in written.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise UserError(f"The draft overflows {dtype}: set export.dtype=bfloat16.")
        if not torch.equal(tensor, expected[name]):
            raise ExportError(f"{folder} does not hold the champion's {name} in {dtype}")


def serve(target: str, draft: str, num_draft_tokens: int) -> str:
    """The card's section: how each engine is started with this head."""
    of_vllm = vllm.command(target, draft, num_draft_tokens, head=True)
    of_sglang = sglang.command(target, draft, num_draft_tokens, head=True)
    return (
        f"### vLLM\n\n```sh\n{of_vllm}\n```\n\n"
        f"### SGLang\n\n```sh\n{of_sglang}\n```\n\n"
        "### llama.cpp\n\n```sh\n"
        f"python convert_hf_to_gguf.py {draft} --target-model-dir TARGET --outtype bf16 "
        f"--outfile head.gguf\nllama-server -m target.gguf -md head.gguf --spec-type draft-eagle3 "
        f"--spec-draft-n-max {num_draft_tokens}\n```\n\n"
        "These commands were written from the engines' documentation and have not been run here."
    )
