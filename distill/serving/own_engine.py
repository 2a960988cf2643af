"""The proof of drafts that transformers does not decode with, in this project's own engine."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from transformers import PreTrainedModel

from distill.models.draft import load_draft
from distill.serving.proof import Proof, compare, within
from distill.speculative.decode import decode
from distill.speculative.drafter_for import drafter_for
from distill.speculative.parting import divergences
from distill.speculative.sampling import Sampling


def prove(
    draft: Path,
    *,
    target: PreTrainedModel,
    eos_token_ids: Sequence[int],
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int = 32,
) -> Proof:
    """Greedy decoding with the exported draft against plain decoding, as the target is loaded."""
    small = load_draft(draft, dtype=target.dtype, device=target.device)
    prompts = within(prompts, max_new_tokens, target, None)

    def tokens(k: int) -> list[list[int]]:
        drafter = drafter_for(small, target) if k else None
        return decode(
            target,
            prompts,
            drafter=drafter,
            num_draft_tokens=k,
            sampling=Sampling(temperature=0.0),
            max_new_tokens=max_new_tokens,
            eos_token_ids=eos_token_ids,
        ).tokens

    plain, assisted = tokens(0), tokens(3)
    return compare(
        "distill",
        version("distill-draft"),
        plain,
        assisted,
        counters={},
        dtype=str(target.dtype).removeprefix("torch."),
        parted=divergences(target, prompts, plain, assisted),
    )
