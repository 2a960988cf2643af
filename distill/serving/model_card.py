"""The README.md of an exported draft: what was measured, how, from what, and how to serve it."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
# Name in summary.json, what a reader calls it, format. NAME_low and NAME_high are its interval.
ROWS: tuple[tuple[str, str, str], ...] = (
    ("speedup", "Speedup over plain decoding", ".3f"),
    ("alpha", "Acceptance probability per drafted token (alpha, analytic)", ".3f"),
    ("alpha_empirical", "The same, counted", ".3f"),
    ("tokens_per_pass", "Tokens per target pass", ".3f"),
    ("num_draft_tokens", "Tokens drafted per round (k)", ".0f"),
    ("confidence_threshold", "A round ends behind a drafted token less likely than", ".2f"),
    ("cost_ratio", "Time of a draft step / time of a target step", ".3f"),
    ("predicted_speedup", "Speedup predicted from alpha and the step times", ".3f"),
    ("engine_efficiency", "Measured / predicted speedup", ".3f"),
    ("parameter_ratio", "Draft parameters / target parameters", ".3f"),
    ("train_tokens", "Training tokens", ",.0f"),
)
NO_THRESHOLD = ("confidence_threshold", 0.0)


def render(
    *,
    name: str,
    target_id: str,
    dtype: str,
    description: str,
    serve: Callable[[str, str, int], str],
    numbers: Mapping[str, Any],
    measurement: Mapping[str, Any],
    lineage: Mapping[str, Any],
) -> str:
    """The whole card. Rows without a measured number are left out, never filled in.

    description: names `{target}` and `{dtype}`. serve: how engines are started, by target, draft
    and k; both are those of the draft's kind.
    """
    target = _public_name(target_id)
    draft = f"./{name}"
    k = int(numbers["num_draft_tokens"])
    parts = [
        _front_matter(target),
        f"# Draft model for `{target}`",
        description.format(target=target, dtype=dtype),
        *_measured(numbers, measurement),
        f"## Serve it\n\nRun where this folder is `{draft}`.\n\n{serve(target, draft, k)}",
        "## Lineage" + _pairs(lineage),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(target: str) -> str:
    """Metadata the hub reads. No licence: the target's and the data's decide it."""
    metadata: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["speculative-decoding", "draft-model"],
    }
    if HUB_NAME.fullmatch(target):
        metadata = {"base_model": target} | metadata
    return f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---"


def _public_name(target_id: str) -> str:
    """A hub name as it is; of a local folder only its last part: a card is made to be shared."""
    local = target_id.startswith((".", "/", "~")) or Path(target_id).exists()
    return Path(target_id).name if local else target_id


def _measured(numbers: Mapping[str, Any], measurement: Mapping[str, Any]) -> list[str]:
    """Verdict, table and method; of a draft that was not evaluated only that it was not."""
    if "verdict" not in numbers:
        return ["**Verdict: not measured.**"]
    method = (
        "Exact speculative sampling on held-out prompts, against plain decoding in the same "
        "engine, dtype and cache, in interleaved pairs; intervals are 95% intervals over "
        "independent prompts, valid for all drafts and k at once."
    )
    return [
        f"**Verdict: {numbers['verdict']}.**",
        f"## Measured\n\n{_numbers_table(numbers)}",
        f"## How it was measured\n\n{method}{_pairs(measurement)}",
    ]


def _numbers_table(numbers: Mapping[str, Any]) -> str:
    lines = ["| | value | 95% interval |", "|---|---|---|"]
    for key, label, form in ROWS:
        if numbers.get(key) is None or (key, numbers[key]) == NO_THRESHOLD:
            continue
        low, high = numbers.get(f"{key}_low"), numbers.get(f"{key}_high")
        interval = "" if low is None or high is None else f"{low:{form}} to {high:{form}}"
        lines.append(f"| {label} | {numbers[key]:{form}} | {interval} |")
    return "\n".join(lines)


def _pairs(items: Mapping[str, Any]) -> str:
    """A list of names and values, set off from what is above it; empty for nothing."""
    return (
        "\n\n" + "\n".join(f"- {name}: {_text(value)}" for name, value in items.items())
        if items
        else ""
    )


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "none"
    text = "none" if value is None else str(value)
    return Path(text).name if text.startswith(("/", "~")) else text
