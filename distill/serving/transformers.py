"""Hugging Face transformers: the folder every other engine starts from, and assisted generation."""

import importlib.metadata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.utils import logging

from distill.errors import UserError
from distill.files import read_json, write_json
from distill.models.code import auto_tokenizer
from distill.models.draft import load_draft, save_draft
from distill.models.folder import TOKENIZER_FILES
from distill.serving import sglang, vllm
from distill.serving.proof import Proof, compare, within
from distill.speculative.parting import divergences

DESCRIPTION = (
    "A small model that guesses the next tokens of `{target}` for speculative decoding: the target "
    "checks every guess, so its output does not change. Weights in {dtype}; the tokenizer and chat "
    "template are the target's own files. Not meant to be used alone."
)
PROBE_TEXTS = (
    "def f(x):\n    return x + 1\n",
    "The answer is 42. Ünïcödé 你好 🙂",
    "  two  spaces\t\n\n",
)


class ExportError(UserError):
    """The written folder does not do what the champion does. Nothing is exported."""


def write(
    champion: Path,
    destination: Path,
    *,
    target: Path,
    num_draft_tokens: int,
    confidence_threshold: float = 0.0,
    dtype: torch.dtype,
) -> None:
    """Write weights in `dtype`, the target's tokenizer, template and EOS list, and k.

    transformers reads k, the tokens drafted per round, and the confidence below which a round ends
    from the *draft's* generation_config, so that `assistant_model=` alone drafts the way the draft
    was measured.
    """
    draft = load_draft(champion, dtype=torch.float32, device="cpu")
    save_draft(draft, destination, target, dtype=dtype)
    path = destination / "generation_config.json"
    settings = assistant_settings(num_draft_tokens, confidence_threshold)
    write_json(path, read_json(path) | settings)


def assistant_settings(num_draft_tokens: int, confidence_threshold: float) -> dict[str, Any]:
    """Always draft k tokens, or until one falls below the threshold.

    By default transformers varies k and stops early below 0.4.
    """
    return {
        "num_assistant_tokens": num_draft_tokens,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": confidence_threshold,
    }


def check(folder: Path, champion: Path, target: Path, *, dtype: torch.dtype) -> None:
    """The smoke test that needs no target weights: same logits, same tokenizer.

    The written folder is read the way a server reads it, not through our own loader.
    Raises ExportError naming what differs, UserError for weights that `dtype` cannot hold.
    """
    check_tokenizer(folder, target)
    expected = load_draft(champion, dtype=dtype, device="cpu")
    written = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", trust_remote_code=False
    ).eval()
    if written.dtype != dtype:
        raise ExportError(f"{folder} loads as {written.dtype}, not as {dtype}")
    ids = torch.arange(min(32, written.config.vocab_size)).unsqueeze(0)
    with torch.inference_mode():
        logits = written(ids).logits
        same = torch.equal(expected(ids).logits, logits)
    if not logits.isfinite().all():
        raise UserError(f"The draft overflows {dtype}: set export.dtype=bfloat16.")
    if not same:
        raise ExportError(f"{folder} does not give the champion's logits in {dtype}")


def serve(target: str, draft: str, num_draft_tokens: int) -> str:
    """The card's section: how each engine is started with this draft."""
    return (
        f"### vLLM\n\n```sh\n{vllm.command(target, draft, num_draft_tokens)}\n```\n\n"
        "vLLM always drafts k tokens, and greedily unless told otherwise; at a temperature above 0 "
        "its acceptance therefore differs from alpha above.\n\n"
        f"### SGLang\n\n```sh\n{sglang.command(target, draft, num_draft_tokens, head=False)}\n"
        "```\n\n"
        f"### transformers\n\n```python\n{command(target, draft, num_draft_tokens)}\n```"
    )


def command(target: str, draft: str, num_draft_tokens: int) -> str:
    """A Python snippet; `num_draft_tokens` is in the draft's generation_config already."""
    return f"""\
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({target!r})
target = AutoModelForCausalLM.from_pretrained({target!r}, dtype="auto")
draft = AutoModelForCausalLM.from_pretrained({draft!r}, dtype="auto")  # drafts {num_draft_tokens}
inputs = tokenizer("def fibonacci(n):", return_tensors="pt")
output = target.generate(**inputs, assistant_model=draft, do_sample=False, max_new_tokens=64)
print(tokenizer.decode(output[0], skip_special_tokens=True))"""


def prove(
    draft: Path,
    *,
    target: PreTrainedModel,
    eos_token_ids: Sequence[int],
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int = 32,
) -> Proof:
    """Greedy `generate(assistant_model=)` against `generate` alone, as the target is loaded.

    Args:
        draft: the exported folder; loaded beside the target, in its dtype.
        target: in whatever dtype and on whatever devices it is served.
        eos_token_ids: what ends the target's text.
        prompts: token ids as the serving template makes them, such as evaluation prompts; cut where
            the answer would not fit into a context.
        max_new_tokens: per prompt.
    """
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        draft, dtype=target.dtype, trust_remote_code=False
    )
    beside = loaded.to(target.device).eval()
    prompts = within(prompts, max_new_tokens, target, beside)
    ends = list(eos_token_ids)
    greedy = GenerationConfig(
        max_new_tokens=max_new_tokens, eos_token_id=ends, pad_token_id=ends[0], do_sample=False
    )
    with _alone(target, greedy):
        plain = [_continued(target, ids) for ids in prompts]
        assisted = [_continued(target, ids, beside) for ids in prompts]
    return compare(
        "transformers",
        importlib.metadata.version("transformers"),
        plain,
        assisted,
        counters={},
        dtype=str(target.dtype).removeprefix("torch."),
        parted=divergences(target, prompts, plain, assisted),
    )


@contextmanager
def _alone(target: PreTrainedModel, generation: GenerationConfig) -> Iterator[None]:
    """Generate by these settings only: a target's own, such as a temperature, would mix with them.

    What transformers says of its own calls meanwhile is of no use to who exports a draft.
    """
    model: Any = target
    before, level = model.generation_config, logging.get_verbosity()
    model.generation_config = generation
    logging.set_verbosity_error()
    try:
        yield
    finally:
        model.generation_config = before
        logging.set_verbosity(level)


def _continued(
    target: PreTrainedModel, prompt: Sequence[int], draft: PreTrainedModel | None = None
) -> list[int]:
    ids = torch.tensor([list(prompt)], device=target.device)
    generate: Any = target.generate
    output = generate(ids, attention_mask=torch.ones_like(ids), assistant_model=draft)
    return output[0, ids.shape[1] :].tolist()


def check_tokenizer(folder: Path, target: Path) -> None:
    """Raise ExportError unless the folder's tokenizer files are the target's, byte for byte."""
    for name in TOKENIZER_FILES:
        source, copy = target / name, folder / name
        if source.is_file() and not (copy.is_file() and copy.read_bytes() == source.read_bytes()):
            raise ExportError(f"{name} in {folder} is not the target's, byte for byte")
    ours, theirs = auto_tokenizer(folder), auto_tokenizer(target)
    for text in PROBE_TEXTS:
        if ours(text)["input_ids"] != theirs(text)["input_ids"]:
            raise ExportError(f"the tokenizer in {folder} splits {text!r} unlike the target's")
