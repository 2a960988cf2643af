"""Samples of the real engine against the exact law of a small model: χ² over joint tokens.

Shapes: V vocabulary.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.stats import chi2
from torch import Tensor
from transformers import PreTrainedModel

from distill.speculative.cache import RaggedCache
from distill.speculative.decode import decode
from distill.speculative.drafters import Drafter
from distill.speculative.processors import Distribution
from distill.speculative.round_length import DraftLength
from distill.speculative.rule import Rule, speculative_rule
from distill.speculative.sampling import Sampling

ROWS = 4096
"""Copies of the prompt decoded as one batch, each with random numbers of its own."""
LEAST_EXPECTED = 5.0
"""Rarer outcomes are counted together: χ² is an approximation for many counts."""

Outcome = tuple[int, ...]


@dataclass(frozen=True)
class Trial:
    """What is sampled: one prompt, a few tokens of it, k drafts a round or fewer, any faults.

    rule and cache_type are the engine's own unless a negative control replaces them.
    """

    target: PreTrainedModel
    drafter: Drafter
    prompt: list[int]
    num_draft_tokens: DraftLength
    tokens: int
    vocabulary_size: int
    eos_token_ids: tuple[int, ...] = ()
    rule: Rule = speculative_rule
    cache_type: type[RaggedCache] = RaggedCache


@dataclass(frozen=True)
class Fit:
    """Pearson's statistic and its chance under the law; 0 if an impossible outcome came."""

    samples: int
    outcomes: int
    statistic: float
    p_value: float


def goodness_of_fit(trial: Trial, sampling: Sampling, samples: int, seed: int) -> Fit:
    """Decode at least `samples` rows and compare the joint outcomes with the law."""
    counts: Counter[Outcome] = Counter()
    for batch in range(-(-samples // ROWS)):
        out = decode(
            trial.target,
            [trial.prompt] * ROWS,
            drafter=trial.drafter,
            num_draft_tokens=trial.num_draft_tokens,
            sampling=sampling,
            max_new_tokens=trial.tokens,
            eos_token_ids=trial.eos_token_ids,
            seed=seed,
            row_ids=range(batch * ROWS, (batch + 1) * ROWS),
            vocabulary_size=trial.vocabulary_size,
            rule=trial.rule,
            cache_type=trial.cache_type,
        )
        counts.update(tuple(tokens) for tokens in out.tokens)
    return chi_squared(counts, exact_law(trial, sampling))


def chi_squared(counts: Counter[Outcome], law: dict[Outcome, float]) -> Fit:
    """Counts against probabilities. Outcomes expected fewer than five times share one cell."""
    samples = counts.total()
    if any(law.get(outcome, 0.0) == 0.0 for outcome in counts):
        return Fit(samples, len(law), float("inf"), 0.0)
    cells: list[tuple[float, float]] = []
    rare_seen = rare_expected = 0.0
    for outcome, probability in law.items():
        expected = probability * samples
        if expected >= LEAST_EXPECTED:
            cells.append((counts[outcome], expected))
        else:
            rare_seen += counts[outcome]
            rare_expected += expected
    if rare_expected > 0:
        cells.append((rare_seen, rare_expected))
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    return Fit(samples, len(cells), statistic, float(chi2.sf(statistic, max(len(cells) - 1, 1))))


@torch.inference_mode()
def exact_law(trial: Trial, sampling: Sampling) -> dict[Outcome, float]:
    """Every outcome's probability, from forward passes without a cache and without drafts."""
    law: dict[Outcome, float] = {}
    open_prefixes: dict[Outcome, float] = {(): 1.0}
    for length in range(trial.tokens):
        following = _next_token_laws(trial, sampling, list(open_prefixes))
        grown: dict[Outcome, float] = {}
        for (prefix, weight), row in zip(open_prefixes.items(), following.tolist(), strict=True):
            for token, probability in enumerate(row):
                ended = token in trial.eos_token_ids or length + 1 == trial.tokens
                if probability > 0:
                    (law if ended else grown)[(*prefix, token)] = weight * probability
        open_prefixes = grown
    return law


def _next_token_laws(trial: Trial, sampling: Sampling, prefixes: Sequence[Outcome]) -> Tensor:
    """[prefixes, V] float64, each prefix read from its start."""
    device = trial.target.device
    contexts = [[*trial.prompt, *prefix] for prefix in prefixes]
    logits = trial.target(torch.tensor(contexts, device=device)).logits[:, -1:]
    distribution = Distribution(
        [sampling] * len(contexts),
        [len(trial.prompt)] * len(contexts),
        trial.eos_token_ids,
        device,
    )
    none = torch.zeros((len(contexts), 0), dtype=torch.long, device=device)
    law = distribution(logits[..., : trial.vocabulary_size].double(), contexts, none)
    return law[:, 0].cpu()
