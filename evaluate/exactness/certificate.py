"""The certificate: speculative decoding emits the target's own law, and a fault would show."""

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from distill.evaluate.exactness.chi_square import Trial, goodness_of_fit
from distill.evaluate.exactness.controls import (
    Foreseeing,
    OffByOneCache,
    ignoring_temperature,
    without_residual,
)
from distill.evaluate.exactness.enumeration import emitted_law, target_law
from distill.evaluate.exactness.greedy import GreedyRun, divergences
from distill.evaluate.exactness.kinds import harmful, harmless, is_ever_unsure, tiny_trial
from distill.evaluate.exactness.reference import law_error
from distill.evaluate.exactness.toy import cases
from distill.progress import Progress
from distill.speculative.decode import decode
from distill.speculative.drafters import ModelDrafter
from distill.speculative.round_length import Confident, DraftLength
from distill.speculative.rule import Rule, speculative_rule
from distill.speculative.sampling import Sampling

log = logging.getLogger(__name__)
EXACT = 1e-12
"""Largest error of a probability that float64 arithmetic may leave."""
ALIKE = 1e-5
"""Largest difference of a probability to transformers' float32 processors."""
LEAST_CHANCE = 1e-4
"""A χ² less likely than this under the exact law fails: by chance one certificate in a thousand."""
COPY_ALPHA = 1 - 1e-3
"""Least alpha of a copy, below 1 because passes over one and k+1 tokens round differently."""

PLAIN = Sampling()
SETTINGS: dict[str, Sampling] = {
    "plain sampling": PLAIN,
    "temperature": Sampling(temperature=0.6),
    "top_k": Sampling(top_k=3),
    "top_p": Sampling(top_p=0.8),
    "min_p": Sampling(min_p=0.1),
    "repetition_penalty": Sampling(repetition_penalty=1.5),
    "frequency_penalty": Sampling(frequency_penalty=0.7),
    "presence_penalty": Sampling(presence_penalty=0.7),
    "min_new_tokens": Sampling(min_new_tokens=2),
    "all together": Sampling(0.8, 5, 0.95, 0.02, 1.2, 0.3, 0.3, 1),
}

LENGTHS: dict[str, DraftLength] = {
    "rounds ended by confidence": Confident(2, 0.2),
}


@dataclass(frozen=True)
class Check:
    """A claim, whether it held, and the numbers behind it."""

    name: str
    passed: bool
    evidence: dict[str, Any]


@dataclass(frozen=True)
class Certificate:
    """All claims: checks hold for the engine, controls hold when a deliberate fault was caught."""

    checks: list[Check] = field(default_factory=list)
    controls: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(check.passed for check in [*self.checks, *self.controls])

    def record(self) -> dict[str, Any]:
        """The certificate as plain JSON values; an infinite statistic as the text `inf`."""
        return json.loads(self.json())

    def json(self) -> str:
        content = _finite({"passed": self.passed, **asdict(self)})
        return json.dumps(content, indent=1, allow_nan=False)

    def text(self) -> str:
        """The short form, one line per claim."""
        lines = [f"exact speculative decoding: {'certified' if self.passed else 'NOT CERTIFIED'}"]
        for check in [*self.checks, *self.controls]:
            lines.append(f"  {'pass' if check.passed else 'FAIL'}  {check.name}")
        return "\n".join(lines)


def certify(
    exact: GreedyRun,
    half: Sequence[GreedyRun] = (),
    *,
    samples: int = 200_000,
    seed: int = 0,
) -> Certificate:
    """Check the engine on a real pair in float32 (`exact`) and, where given, in half precision.

    The laws are checked on toy distributions and on tiny models with a drafter of the same kind,
    where they can be written down.
    """
    certificate = Certificate()
    tiny = tiny_trial(type(exact.drafter))
    few = max(samples // 4, 1)
    claims = len(SETTINGS) + len(LENGTHS) + len(harmless(tiny.drafter))
    faults = 3 + is_ever_unsure(tiny.drafter) + len(harmful(tiny.drafter))
    first = "greedy decoding of every prompt, alone and with the draft"
    with Progress("certify, samples", claims * samples + faults * few, first) as progress:

        def add(to: list[Check], check: Check, drawn: int = 0) -> None:
            to.append(check)
            log.info("certify: %s", check.name)
            progress.advance(drawn)

        checks = certificate.checks
        add(checks, enumerated(speculative_rule))
        add(checks, identical(exact))
        progress.warm()
        for name, sampling in SETTINGS.items():
            add(checks, sampled(name, tiny, sampling, samples, seed), samples)
        add(checks, processors_agree(SETTINGS))
        for name, length in LENGTHS.items():
            trial = replace(tiny, num_draft_tokens=length)
            add(checks, sampled(name, trial, PLAIN, samples, seed), samples)
        for name in harmless(tiny.drafter):
            add(checks, unharmed(name, exact, tiny, samples, seed), samples)
        add(checks, copy_accepts_all(exact, SETTINGS))
        for run in half:
            add(checks, near_ties_only(run))
        for check in controls(exact, tiny, few, seed):
            add(certificate.controls, check, few)
    return certificate


def enumerated(rule: Rule) -> Check:
    """(a) The emitted law over five tokens equals the target's in every case."""
    errors = {
        name: (emitted_law(rule, p, q) - target_law(p)).abs().max().item()
        for name, (p, q) in cases().items()
    }
    worst = max(errors.values())
    return Check(f"emitted law, enumerated: error {worst:.1e}", worst <= EXACT, errors)


def identical(run: GreedyRun) -> Check:
    """(b) Greedy decoding emits the same tokens with and without a draft."""
    found = divergences(run)
    name = f"greedy {_dtype(run)}: {len(run.prompts) - len(found)} of {len(run.prompts)} identical"
    return Check(name, not found, {"divergences": [asdict(one) for one in found]})


def sampled(name: str, trial: Trial, sampling: Sampling, samples: int, seed: int) -> Check:
    """(c) Joint tokens of the real engine follow the exact law."""
    fit = goodness_of_fit(trial, sampling, samples, seed)
    text = f"χ² of {fit.samples} samples, {name}: p = {fit.p_value:.2g}"
    return Check(text, fit.p_value >= LEAST_CHANCE, asdict(fit))


def processors_agree(settings: Mapping[str, Sampling]) -> Check:
    """The law that is sampled and tested is the one of transformers' own logits processors."""
    errors = {name: law_error(sampling) for name, sampling in settings.items()}
    worst = max(errors.values())
    return Check(f"law of transformers' processors: error {worst:.1e}", worst <= ALIKE, errors)


def copy_accepts_all(run: GreedyRun, settings: Mapping[str, Sampling]) -> Check:
    """(d) The target as its own draft is always accepted."""
    copy = ModelDrafter(run.target)
    alphas = {
        name: decode(
            run.target,
            run.prompts[:2],
            drafter=copy,
            num_draft_tokens=run.num_draft_tokens,
            sampling=sampling,
            max_new_tokens=16,
            vocabulary_size=run.vocabulary_size,
        ).stats.alpha
        for name, sampling in settings.items()
    }
    lowest = min(alphas.values())
    return Check(f"draft == target: alpha {lowest:.5f} or more", lowest >= COPY_ALPHA, alphas)


def unharmed(name: str, run: GreedyRun, trial: Trial, samples: int, seed: int) -> Check:
    """A drafter that guesses worse for this reason leaves the law and every greedy token alone."""
    claims = (
        identical(replace(run, drafter=harmless(run.drafter)[name])),
        sampled("T=1", replace(trial, drafter=harmless(trial.drafter)[name]), PLAIN, samples, seed),
    )
    evidence = {claim.name: claim.evidence for claim in claims}
    return Check(f"{name}: the law stays", all(claim.passed for claim in claims), evidence)


def near_ties_only(run: GreedyRun) -> Check:
    """(e) In half precision outputs part only where the two tokens are a near-tie."""
    found = divergences(run)
    unexplained = [one for one in found if not one.near_tie]
    name = f"greedy {_dtype(run)}: {len(found)} divergences, {len(unexplained)} not near-ties"
    return Check(name, not unexplained, {"divergences": [asdict(one) for one in found]})


def controls(run: GreedyRun, trial: Trial, samples: int, seed: int) -> Iterator[Check]:
    """(f) Each fault must be caught by a claim that can see it.

    Not every claim sees every fault on every pair: greedy decoding misses one that never changes
    the argmax.
    """
    tempered = SETTINGS["temperature"]
    blind = ignoring_temperature(tempered.temperature)
    no_residual, no_temperature, off_by_one, foreseeing = (
        replace(trial, rule=without_residual),
        replace(trial, rule=blind),
        replace(trial, cache_type=OffByOneCache),
        replace(trial, num_draft_tokens=Foreseeing(2, 0.2)),
    )
    yield _caught(
        "residual left out",
        enumerated(without_residual),
        sampled("T=1", no_residual, PLAIN, samples, seed),
    )
    yield _caught(
        "q's temperature ignored",
        enumerated(blind),
        sampled("T=0.6", no_temperature, tempered, samples, seed),
    )
    yield _caught(
        "rollback off by one",
        identical(replace(run, cache_type=OffByOneCache)),
        sampled("T=1", off_by_one, PLAIN, samples, seed),
    )
    if is_ever_unsure(trial.drafter):
        yield _caught("unsure token left out", sampled("T=1", foreseeing, PLAIN, samples, seed))
    for fault, drafter in harmful(trial.drafter).items():
        claim = sampled("T=1", replace(trial, drafter=drafter), PLAIN, samples, seed)
        yield _caught(fault, claim)


def _caught(fault: str, *claims: Check) -> Check:
    """Holds when at least one of the claims failed for the faulty engine."""
    failed = [claim.name for claim in claims if not claim.passed]
    said = failed[0] if failed else f"missed by {len(claims)} claims"
    evidence = {claim.name: claim.evidence for claim in claims}
    return Check(f"control, {fault}: {said}", bool(failed), evidence)


def _dtype(run: GreedyRun) -> str:
    return str(run.target.dtype).removeprefix("torch.")


def _finite(value: Any) -> Any:
    """The value with infinities and NaN as texts, for which JSON has no numbers."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
