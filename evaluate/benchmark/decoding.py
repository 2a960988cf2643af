"""This engine against transformers' own decoding: tokens per second, and speed against prediction.

Greedy, a fixed number of new tokens, no end token: every arm emits equally many. transformers'
assisted generation takes one prompt at a time, so it has no arm at larger batches; nor has it one
for a head, which it cannot run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel

from distill.errors import UserError
from distill.evaluate.interleave import there_and_back
from distill.speculative.decode import Output, decode
from distill.speculative.drafter_for import drafter_for
from distill.speculative.prediction import Cost
from distill.speculative.sampling import Sampling
from distill.speculative.stopwatch import seconds

GREEDY = Sampling(temperature=0)

Decoding = Callable[[], Output | None]
"""Decodes all prompts once. Arms of transformers return None: they tell nothing but their time."""


@dataclass(frozen=True)
class Rate:
    """Tokens per second of one arm, one number for each time it ran."""

    tokens_per_second: list[float]

    @property
    def median(self) -> float:
        return median(self.tokens_per_second)

    @property
    def low(self) -> float:
        return min(self.tokens_per_second)

    @property
    def high(self) -> float:
        return max(self.tokens_per_second)

    def over(self, other: "Rate") -> float:
        """Median of the ratios of the runs that stood at the same place of A B B A."""
        pairs = zip(self.tokens_per_second, other.tokens_per_second, strict=True)
        return median(mine / theirs for mine, theirs in pairs)


@dataclass(frozen=True)
class Line:
    """One batch size and k. Rates are of whole calls, prompts included; speedup of decoding alone.

    predicted: tokens_per_pass / (v + k·c), with c and v from the steps of the same runs.
    """

    batch_size: int
    num_draft_tokens: int
    generate: Rate
    plain: Rate
    assisted: Rate | None
    speculative: Rate
    alpha: float
    tokens_per_pass: float
    cost: Cost
    speedup: float

    @property
    def predicted(self) -> float:
        return self.cost.speedup(self.tokens_per_pass, self.num_draft_tokens)

    @property
    def efficiency(self) -> float:
        return self.speedup / self.predicted

    def numbers(self) -> dict[str, float | None]:
        """The line's numbers by name; rates by their medians."""
        return {
            "batch_size": self.batch_size,
            "num_draft_tokens": self.num_draft_tokens,
            "generate": self.generate.median,
            "plain": self.plain.median,
            "plain_over_generate": self.plain.over(self.generate),
            "assisted": self.assisted and self.assisted.median,
            "speculative": self.speculative.median,
            "speculative_over_assisted": self.assisted and self.speculative.over(self.assisted),
            "alpha": self.alpha,
            "tokens_per_pass": self.tokens_per_pass,
            "c": self.cost.c,
            "v": self.cost.v,
            "speedup": self.speedup,
            "predicted_speedup": self.predicted,
            "engine_efficiency": self.efficiency,
        }


@dataclass(frozen=True)
class Contest:
    """What is decoded and by which models, whose own generation settings are put aside."""

    target: PreTrainedModel
    draft: PreTrainedModel
    prompts: Sequence[list[int]]
    vocabulary_size: int
    max_new_tokens: int
    repetitions: int


def benchmark(
    contest: Contest, batch_sizes: Sequence[int], num_draft_tokens: Sequence[int]
) -> Iterator[list[Line]]:
    """Yield one list per batch size, with a line per k. UserError: empty lists, too few prompts."""
    if not batch_sizes or not num_draft_tokens or min(*batch_sizes, *num_draft_tokens, 1) < 1:
        raise UserError("a benchmark needs batch sizes and values of k from 1 on")
    if len(contest.prompts) < max(batch_sizes):
        raise UserError(f"{len(contest.prompts)} prompts make no batch of {max(batch_sizes)}")
    for size in batch_sizes:
        yield _at(contest, contest.prompts[:size], list(num_draft_tokens))


def _at(contest: Contest, prompts: Sequence[list[int]], ks: list[int]) -> list[Line]:
    arms: dict[str, Decoding] = {
        "generate": generating(contest.target, prompts, contest.max_new_tokens),
        "plain": _ours(contest, prompts),
    }
    for k in ks:
        arms[f"speculative {k}"] = _ours(contest, prompts, k)
        if len(prompts) == 1 and isinstance(contest.draft, GenerationMixin):
            arms[f"assisted {k}"] = generating(
                contest.target, prompts, contest.max_new_tokens, contest.draft, k
            )
    seconds, outputs = _alternate(arms, contest)
    tokens = len(prompts) * contest.max_new_tokens
    whole = {name: Rate([tokens / one for one in found]) for name, found in seconds.items()}
    decoding = {
        name: Rate([tokens / out.timing.decode_seconds for out in found])
        for name, found in outputs.items()
    }
    timings = {name: [out.timing for out in found] for name, found in outputs.items()}
    return [
        Line(
            batch_size=len(prompts),
            num_draft_tokens=k,
            generate=whole["generate"],
            plain=whole["plain"],
            assisted=whole.get(f"assisted {k}"),
            speculative=whole[f"speculative {k}"],
            alpha=outputs[f"speculative {k}"][0].stats.alpha,
            tokens_per_pass=outputs[f"speculative {k}"][0].stats.tokens_per_pass,
            cost=Cost.measured(timings["plain"], timings[f"speculative {k}"]),
            speedup=decoding[f"speculative {k}"].over(decoding["plain"]),
        )
        for k in ks
    ]


def _alternate(
    arms: Mapping[str, Decoding], contest: Contest
) -> tuple[dict[str, list[float]], dict[str, list[Output]]]:
    """Seconds of every run, and the outputs of the engine's own arms, after one warm-up each."""
    device = contest.target.device
    taken: dict[str, list[float]] = {name: [] for name in arms}
    outputs: dict[str, list[Output]] = {}
    for decoding in arms.values():
        decoding()
    for _, name in there_and_back(list(arms), 2 * contest.repetitions):
        start = seconds(device)
        output = arms[name]()
        taken[name].append(seconds(device) - start)
        if output is not None:
            outputs.setdefault(name, []).append(output)
    return taken, outputs


def _ours(contest: Contest, prompts: Sequence[list[int]], k: int = 0) -> Decoding:
    drafter = drafter_for(contest.draft, contest.target) if k else None

    def run() -> Output:
        return decode(
            contest.target,
            prompts,
            drafter=drafter,
            num_draft_tokens=k,
            sampling=GREEDY,
            max_new_tokens=contest.max_new_tokens,
            vocabulary_size=contest.vocabulary_size,
        )

    return run


def generating(
    target: PreTrainedModel,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    draft: PreTrainedModel | None = None,
    k: int = 0,
) -> Callable[[], None]:
    """Make a call of `generate` on prompts padded left, assisted by the draft if one is given.

    Both models' generation configs are replaced: no end token, no settings of the checkpoint.
    """
    width, device = max(map(len, prompts)), target.device
    ids = torch.tensor([[0] * (width - len(row)) + row for row in prompts], device=device)
    seen = [[0] * (width - len(row)) + [1] * len(row) for row in prompts]
    mask = torch.tensor(seen, device=device)
    generate: Any = target.generate

    def run() -> None:
        target.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
        if draft is not None:
            draft.generation_config = _exactly(k)
        made = generate(
            ids, attention_mask=mask, max_new_tokens=max_new_tokens, assistant_model=draft
        )
        if made.shape[1] - width != max_new_tokens:
            raise UserError(
                f"generate emitted {made.shape[1] - width} tokens of {max_new_tokens}: lower "
                "benchmark.max_new_tokens so that it fits the target's context"
            )

    return run


def _exactly(k: int) -> GenerationConfig:
    """Settings of a draft that assists: k tokens a round, whatever its success or confidence."""
    return GenerationConfig(
        do_sample=False,
        pad_token_id=0,
        num_assistant_tokens=k,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
    )
