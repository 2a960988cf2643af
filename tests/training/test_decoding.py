"""Decoding while training: training does not notice, and the numbers are the engine's."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from distill.speculative.decode import decode
from distill.speculative.drafters import ModelDrafter
from distill.training.clock import Clock
from distill.training.config import BudgetConfig


def weights(draft: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in draft.parameters()])


def read_metrics(result: dict) -> list[dict]:
    return [json.loads((Path(p) / "metrics.json").read_text()) for p in result["candidates"]]


@pytest.fixture
def train(tiny, tmp_path: Path, monkeypatch):
    """Train with dropout, which any disturbance of the random state would show."""

    def run(name: str, **changes):
        changes.setdefault("draft", tiny.llama(16, seed=1, attention_dropout=0.2))
        return tiny.train(tmp_path / name, monkeypatch, **changes)

    return run


@pytest.fixture
def decoding(tiny):
    return lambda **changes: tiny.decoding(tiny.llama(32, seed=0), **changes)


class Stop:
    """Sends SIGTERM to this process at the teacher's call number `calls`."""

    def __init__(self, teacher, calls: int):
        self.to, self._teacher, self._calls = teacher.to, teacher, calls

    def signal(self, batch, positions):
        self._calls -= 1
        if self._calls == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return self._teacher.signal(batch, positions)


def test_the_same_draft_is_trained_as_without(train, decoding) -> None:
    _, without, _ = train("without")
    _, draft, _ = train("with", decoding=decoding())
    assert torch.equal(weights(draft), weights(without))
    assert all(module.training for module in draft.modules())


def test_a_stopped_run_goes_on_bit_for_bit(train, decoding, tiny) -> None:
    whole, draft, _ = train("whole", decoding=decoding())
    stopping = Stop(tiny.LiveTeacher(tiny.llama(32, seed=0)), calls=13)
    with pytest.raises(SystemExit):
        train("parts", decoding=decoding(), teacher=stopping)
    torch.manual_seed(123)  # whatever another process starts with
    resumed, other, rest = train("parts", decoding=decoding())
    assert rest.seen[0] > 0
    assert torch.equal(weights(draft), weights(other))
    counted = ("alpha", "tokens_per_pass")
    ours, expected = (
        [{name: metrics["decoding"][name] for name in counted} for metrics in read_metrics(result)]
        for result in (resumed, whole)
    )
    assert ours == expected


def test_candidates_and_logger_carry_what_the_engine_finds(
    train, decoding, tiny, tmp_path, caplog
) -> None:
    logger = CSVLogger(tmp_path / "logs")
    with caplog.at_level("INFO", "distill"):
        result, draft, _ = train("run", decoding=decoding(), logger=logger)
    prompts = [[1, 2, 3], [4, 5]]
    outputs = [
        decode(
            tiny.llama(32, seed=0),
            [prompt],
            drafter=ModelDrafter(draft),
            num_draft_tokens=2,
            max_new_tokens=6,
            vocabulary_size=tiny.VOCABULARY,
        )
        for prompt in prompts
    ]
    records = [output.stats.per_prompt[0] for output in outputs]
    alpha = sum(r.alpha_sum for r in records) / sum(r.tested for r in records)
    last = read_metrics(result)[-1]["decoding"]
    assert last["alpha"] == pytest.approx(alpha, rel=1e-5)
    passes = sum(r.target_passes for r in records)
    assert last["tokens_per_pass"] == pytest.approx(12 / passes)
    # The formula, written out: (1 + α + α²) / (v + 2c).
    worth = (1 + alpha + alpha**2) / (last["verify_cost"] + 2 * last["cost_ratio"])
    assert last["predicted_speedup"] == pytest.approx(worth, rel=1e-5)
    header, *lines = Path(logger.log_dir, "metrics.csv").read_text().splitlines()
    assert "decoding/alpha" in header.split(",")
    column = header.split(",").index("decoding/alpha")
    # At each fourth of the budget, the last of which is its end; Lightning repeats them.
    assert len({line.split(",")[column] for line in lines} - {""}) == 4
    progress = caplog.text.split("train 100%")[1]
    for name in ("alpha", "tokens_per_pass", "predicted_speedup"):
        assert f"decoding/{name} {last[name]:.3f}" in progress


def test_a_target_that_is_compiled_for_training_decodes_eagerly(train, tiny) -> None:
    """The model is of no family that `LlamaForward` runs: those never call the blocks."""
    target, traced = tiny.llama(32, seed=0, hidden_act="gelu"), []

    def backend(graph, inputs):
        traced.append(graph)
        return graph

    target.model.layers[0].compile(backend=backend)
    train("run", decoding=tiny.decoding(target))
    assert not traced


def test_its_time_is_no_part_of_the_budget(train, decoding, monkeypatch) -> None:
    slow = decoding()
    measure = slow._compare
    monkeypatch.setattr(slow, "_compare", lambda draft: [time.sleep(0.5), measure(draft)][1])
    started = time.monotonic()
    result, _, _ = train("slow", decoding=slow)
    assert time.monotonic() - started >= 4 * 0.5 + result["seconds"]


def test_a_stopped_clock_counts_neither_for_the_budget_nor_for_the_rate(monkeypatch) -> None:
    now = iter([0.0, 2.0, 7.0, 10.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    clock = Clock(BudgetConfig(tokens=100))
    with clock.stopped():
        pass
    assert clock.lap() == 5.0
