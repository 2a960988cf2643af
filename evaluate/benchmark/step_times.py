"""How long the engine's own steps take: one pass of the target over k+1 tokens, one draft step.

Speed does not depend on the weights, so random ones and random tokens will do.

Shapes: B rows, K drafted tokens, V vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.evaluate.interleave import there_and_back
from distill.speculative.cached_model import CachedModel
from distill.speculative.drafter_for import drafter_for
from distill.speculative.drafters import LiveRows
from distill.speculative.processors import Distribution
from distill.speculative.rule import speculative_rule
from distill.speculative.sampling import Sampling
from distill.speculative.stopwatch import seconds

Step = Callable[[], None]

WARM_UP = 2
DRAFTED = 4
"""Draft steps are timed in rounds of four, as they come in decoding."""
ROOM = 64
"""Positions kept free behind the context, as in a decoding of 64 tokens."""


@dataclass(frozen=True)
class Setting:
    """Where steps are timed: rows, and tokens of context in each."""

    batch_size: int
    context: int
    vocabulary_size: int
    sampling: Sampling


@torch.inference_mode()
def time_steps(
    steps: Mapping[str, Step], repetitions: int, device: torch.device
) -> dict[str, float]:
    """Median seconds of each step, interleaved there and back after the warm-up rounds."""
    names = list(steps)
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn, name in there_and_back(names, WARM_UP + repetitions):
        start = seconds(device)
        steps[name]()
        if turn >= WARM_UP:
            found[name].append(seconds(device) - start)
    return {name: median(times) for name, times in found.items()}


@torch.inference_mode()
def verify_steps(target: PreTrainedModel, widths: list[int], setting: Setting) -> dict[int, Step]:
    """For each width a pass over `width` tokens with its judgement; width 1 is plain decoding."""
    batch = _batch(target, setting)
    runner = CachedModel(target)
    _fill(runner, batch, setting.context)
    return {width: _verify_step(runner, batch, setting, width) for width in widths}


@torch.inference_mode()
def draft_step(draft: PreTrainedModel, target: PreTrainedModel, setting: Setting) -> Step:
    """A round of DRAFTED draft steps, all of which are rejected; the target's states are random."""
    batch = _batch(draft, setting)
    drafter = drafter_for(draft, target)
    drafter.prefill(batch)
    width = len(drafter.reads) * target.config.get_text_config().hidden_size

    states = torch.randn(
        (setting.batch_size, setting.context, width), dtype=target.dtype, device=target.device
    )
    if width:
        drafter.read(states[:, :-1])

    def step() -> None:
        batch.uniforms = torch.rand(setting.batch_size, DRAFTED, device=draft.device)
        tokens = drafter.propose(DRAFTED).tokens.tolist()
        if width:
            drafter.read(states[:, :1])
        for context, row in zip(batch.contexts, tokens, strict=True):
            context.append(row[0])
        drafter.commit([0] * setting.batch_size)

    return step


def _verify_step(runner: CachedModel, batch: LiveRows, setting: Setting, width: int) -> Step:
    B, V, device = setting.batch_size, setting.vocabulary_size, runner.device
    drafts = torch.randint(V, (B, width - 1), device=device)
    last = torch.tensor([context[-1:] for context in batch.contexts], device=device)
    tokens = torch.cat((last, drafts), 1)
    q = torch.full((B, width - 1, V), 1 / V, device=device)
    counts = torch.full((B,), width - 1, device=device)

    def step() -> None:
        logits, _ = runner.run(tokens)
        _judge(batch, logits[..., :V], drafts, q, counts)

    return step


def _fill(runner: CachedModel, batch: LiveRows, context: int) -> None:
    """Cache `context` - 1 positions, of which only the first is computed.

    Zeros take as long to read as keys and values do.
    """
    runner.prefill([tokens[:2] for tokens in batch.contexts], batch.longest)
    runner.cache.advance([max(context - 2, 0)] * len(batch.contexts))


def _judge(batch: LiveRows, logits: Tensor, drafts: Tensor, q: Tensor, counts: Tensor) -> None:
    if batch.distribution.greedy:
        batch.distribution.best(logits, batch.contexts, drafts).tolist()
        return
    p = batch.distribution(logits, batch.contexts, drafts)
    uniforms = torch.rand(logits.shape[0], logits.shape[1], dtype=torch.float64, device=q.device)
    speculative_rule(drafts, q, p, uniforms, counts).next_token.tolist()


def _batch(model: PreTrainedModel, setting: Setting) -> LiveRows:
    B, context = setting.batch_size, setting.context
    tokens = torch.randint(setting.vocabulary_size, (B, context)).tolist()
    distribution = Distribution([setting.sampling] * B, [context] * B, (), model.device)
    return LiveRows(
        contexts=tokens,
        distribution=distribution,
        vocabulary=setting.vocabulary_size,
        longest=context + ROOM,
        uniforms=torch.zeros(B, DRAFTED, device=model.device),
    )
