"""The plan on paper, by hand."""

import pytest
from transformers import LlamaConfig

from distill.evaluate.benchmark.training_cost import bill
from distill.evaluate.report.tables import as_text, bills_table
from distill.models.plan import DraftPlan


def test_bill_by_hand() -> None:
    plan = DraftPlan(LlamaConfig(), 100_000_000, 1_000_000_000, 200_000_000, 0.5)
    cost = bill(plan, tokens=1_000_000_000, teraflops=100)
    assert cost.flops_per_training_token == 2_600_000_000  # 2·1e9 + 6·1e8
    assert cost.gpu_seconds == pytest.approx(26_000)  # 2.6e18 / 1e14
    assert cost.corpus_bytes == 4_000_000_000
    assert cost.signal_bytes == 384_000_000_000
    assert cost.draft_bytes == 200_000_000
    assert "7.22" in as_text(bills_table({"small": plan}, 1_000_000_000, 100), 150)  # hours
