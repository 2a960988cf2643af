"""Tiny models, and synthetic measurements of a simulated draft for what is made of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from transformers import LlamaForCausalLM

from distill.evaluate.records import PLAIN, Measurement
from tests.tiny import tiny_llama


def tiny(seed: int, **changes: Any) -> LlamaForCausalLM:
    """Random weights, wide enough that two seeds disagree."""
    wide = {"initializer_range": 0.5, "max_position_embeddings": 2048}
    return tiny_llama(seed, **wide | changes)


def make_measurement(
    prompt: str,
    candidate: str = PLAIN,
    k: int = 0,
    *,
    committed: int = 60,
    seconds: float = 2.0,
    passes: int = 60,
    accepted: list[int] | None = None,
    tested: list[int] | None = None,
    alpha: float = 0.0,
    draft_seconds: float = 0.0,
    repetition: int = 0,
    domain: str = "code",
) -> Measurement:
    tested, accepted = tested or [0] * k, accepted or [0] * k
    return Measurement(
        prompt_id=prompt,
        turn=0,
        domain=domain,
        bucket="≤256",
        candidate=candidate,
        num_draft_tokens=k,
        batch_size=1,
        sampling="T=1",
        repetition=repetition,
        unit=prompt,
        prompt_tokens=10,
        committed=committed,
        finish_reason="length",
        prefill_seconds=0.1,
        decode_seconds=seconds,
        draft_seconds=draft_seconds,
        verify_seconds=seconds - draft_seconds,
        draft_steps=passes * k,
        verify_steps=passes,
        target_passes=passes,
        plain_passes=0,
        drafted=passes * k,
        tested=sum(tested),
        accepted=sum(accepted),
        alpha_sum=alpha * sum(tested),
        tested_at=tested,
        accepted_at=accepted,
        alpha_at=[alpha * count for count in tested],
    )


def simulate(
    prompts: int, k: int, alpha: float, c: float, seed: int = 0, candidate: str = "draft"
) -> list[Measurement]:
    """Plain rows and a draft's, accepted independently with probability alpha; a step takes 1 s."""
    generator = np.random.default_rng(seed)
    rows: list[Measurement] = []
    for prompt in range(prompts):
        passes = 50
        runs = np.cumprod(generator.random((passes, k)) < alpha, axis=1)
        tested = [passes, *runs.sum(0)[:-1].tolist()]
        accepted = runs.sum(0).tolist()
        committed = passes + int(runs.sum())
        rows.append(
            make_measurement(
                f"p{prompt:03d}", committed=committed, passes=committed, seconds=committed
            )
        )
        rows.append(
            make_measurement(
                f"p{prompt:03d}",
                candidate,
                k,
                committed=committed,
                passes=passes,
                seconds=passes * (1 + k * c),
                draft_seconds=passes * k * c,
                tested=tested,
                accepted=accepted,
                alpha=alpha,
            )
        )
    return rows


@pytest.fixture
def measurement() -> Callable[..., Measurement]:
    return make_measurement


@pytest.fixture
def simulated() -> Callable[..., list[Measurement]]:
    return simulate
