"""The facts of a small simulated evaluation."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from distill.evaluate.candidates import HeldOutScores
from distill.evaluate.conclusion import Bar, conclude
from distill.evaluate.load import Load
from distill.evaluate.outcome import Considered, Evaluation
from distill.evaluate.records import Measurement
from distill.evaluate.report.facts import Command, Curve, Facts, Training
from distill.speculative.sampling import Sampling

DRAFT = "tokens-000005000"


@pytest.fixture
def facts(simulated: Callable[..., list[Measurement]]) -> Callable[..., Facts]:
    """Of one draft at k = 1 and 2: at T = 1 and the given batch sizes, c = 0.1, alpha = 0.6."""

    def make(
        batch_sizes: Sequence[int] = (1,), margin: float = 1.0, name: str = DRAFT, prompts: int = 20
    ) -> Facts:
        rows = {
            (row.arm, row.prompt_id): replace(
                row, domain="chat" if row.prompt_id < "p010" else "code"
            )
            for k in (1, 2)
            for row in simulated(prompts, k, 0.6, 0.1, candidate=name)
        }
        sized = {
            size: [replace(row, batch_size=size) for row in rows.values()] for size in batch_sizes
        }
        loads = [
            (Load(Sampling(), 8, (), size, 40, 0), conclude(mine, Bar(margin, {})))
            for size, mine in sized.items()
        ]
        evaluation = Evaluation(
            loads=loads,
            considered=[Considered(name, "abc", 100, 5000, HeldOutScores(0.5, 0.6, 0.7))],
            prompts={"conversations": prompts, "turns": prompts},
            target={"id": "org/large", "weights_sha256": "123", "parameters": 1000},
        )
        return Facts(
            evaluation=evaluation.as_json(),
            rows=[row for mine in sized.values() for row in mine],
            lineage={"target": "org/large", "seed": 0},
            commands=[Command("This job", "python -m distill name='<x>'")],
            config="seed: 0\n",
            training=Training(
                {"train/loss": Curve([1000.0, 5000.0], [3.0, 1.5])}, checkpoints(name)
            ),
        )

    return make


def checkpoints(name: str) -> dict[str, dict[str, Any]]:
    return {
        "tokens-000002500": {"tokens": 2500, "kl": 0.9, "alpha": 0.5},
        name: {"tokens": 5000, "kl": 0.5, "alpha": 0.6, "decoding": {"alpha": 0.55}},
    }
