"""The proof's logic against a stand-in for vLLM; the engine itself is not run here."""

import importlib.machinery
import sys
import types

import pytest

from distill.errors import UserError
from distill.serving import vllm


class StandIn:
    """Answers each prompt with its own tokens reversed, or wrongly when a draft is given."""

    wrong = False

    def __init__(self, model, *, speculative_config, **options):
        self.config = speculative_config
        self.model = model

    def generate(self, requests, sampling):
        assert sampling.temperature == 0.0
        spoiled = [99] if self.config and self.wrong else []
        for request in requests:
            tokens = request["prompt_token_ids"][::-1] + spoiled
            yield types.SimpleNamespace(outputs=[types.SimpleNamespace(token_ids=tokens)])

    def get_metrics(self):
        names = (*vllm.COUNTERS, "vllm:other") if self.config else ("vllm:other",)
        return [types.SimpleNamespace(name=name, value=7) for name in names]


@pytest.fixture
def installed(monkeypatch):
    module = types.ModuleType("vllm")
    module.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    module.LLM = StandIn
    module.SamplingParams = lambda **options: types.SimpleNamespace(**options)
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(vllm.importlib.metadata, "version", lambda name: "0.0")


@pytest.mark.parametrize("wrong", [False, True])
def test_both_arms_are_compared_and_the_counters_are_vllms(installed, tmp_path, monkeypatch, wrong):
    monkeypatch.setattr(StandIn, "wrong", wrong)
    proof = vllm.prove(tmp_path, target=tmp_path, prompts=[[1, 2], [3]], num_draft_tokens=2)
    assert proof.identical is not wrong
    assert proof.tokens == (5 if wrong else 3)
    assert proof.counters == dict.fromkeys(vllm.COUNTERS, 7)


def test_without_vllm_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(vllm.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install vllm"):
        vllm.prove(tmp_path, target=tmp_path, prompts=[[1]], num_draft_tokens=2)
