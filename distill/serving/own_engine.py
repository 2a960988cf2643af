"""The proof of drafts that transformers does not decode with, in this project's own engine."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from distill.models.draft import load_draft
from distill.models.target import eos_token_ids, load_target
from distill.serving.proof import Proof, compare
from distill.speculative.decode import decode
from distill.speculative.drafter_for import drafter_for
from distill.speculative.sampling import Sampling


def prove(
    draft: Path, *, target: Path, prompts: Sequence[Sequence[int]], max_new_tokens: int = 32
) -> Proof:
    """Greedy decoding with the exported draft against plain decoding, in float32 on the CPU."""
    model = load_target(target, dtype=torch.float32, device="cpu")
    small = load_draft(draft, dtype=torch.float32, device="cpu")
    ends = eos_token_ids(target)

    def tokens(k: int) -> list[list[int]]:
        drafter = drafter_for(small, model) if k else None
        return decode(
            model,
            prompts,
            drafter=drafter,
            num_draft_tokens=k,
            sampling=Sampling(temperature=0.0),
            max_new_tokens=max_new_tokens,
            eos_token_ids=ends,
        ).tokens

    return compare("distill", version("distill-draft"), tokens(0), tokens(3), counters={})
