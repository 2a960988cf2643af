"""The certificate passes for the engine, and each deliberate fault makes it fail."""

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch
from transformers import LlamaForCausalLM

from distill.evaluate.exactness.certificate import (
    SETTINGS,
    Certificate,
    Check,
    certify,
    copy_accepts_all,
    enumerated,
    identical,
    near_ties_only,
    sampled,
    unharmed,
)
from distill.evaluate.exactness.chi_square import chi_squared, exact_law
from distill.evaluate.exactness.controls import (
    OffByOneCache,
    ignoring_temperature,
    without_residual,
)
from distill.evaluate.exactness.enumeration import emitted_law
from distill.evaluate.exactness.greedy import GreedyRun, divergences
from distill.evaluate.exactness.kinds import harmful, harmless, is_ever_unsure, tiny_trial
from distill.speculative.drafters import LayerDrafter, ModelDrafter
from distill.speculative.eagle3 import Eagle3Drafter
from distill.speculative.lookup import PromptLookup
from distill.speculative.parallel import ParallelDrafter
from distill.speculative.parting import Divergence
from distill.speculative.rule import speculative_rule
from distill.speculative.sampling import Sampling
from tests.tiny import tiny_llama

KINDS = [ModelDrafter, LayerDrafter, Eagle3Drafter, ParallelDrafter, PromptLookup]


def model(seed: int, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    shape = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 64}
    return tiny_llama(seed, **shape, initializer_range=0.2).to(dtype)


def pair(dtype: torch.dtype = torch.float32) -> GreedyRun:
    prompts = [[3, 1, 4], [1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7]]
    return GreedyRun(model(0, dtype), ModelDrafter(model(0, dtype)), prompts, 3, 24, (), 60)


def half_right(dtype: torch.dtype = torch.float32) -> GreedyRun:
    """A draft near the target: blocks are accepted in part."""
    run = pair(dtype)
    draft = model(0, dtype)
    with torch.no_grad():
        for weight in draft.parameters():
            weight += 0.03 * torch.randn_like(weight)
    return replace(run, drafter=ModelDrafter(draft))


def test_one_draft_by_hand() -> None:
    # p = [.5,.3,.2], q = [.2,.3,.5]: alpha 0.7; a rejection always ends in token 0
    def table(rows: list) -> torch.Tensor:
        return torch.tensor(rows, dtype=torch.float64)

    p = [table([0.5, 0.3, 0.2]), table([[0.6, 0.2, 0.2]] * 3)]
    q = [table([0.2, 0.3, 0.5])]
    law = emitted_law(speculative_rule, p, q)
    torch.testing.assert_close(law.sum(1), p[0], atol=1e-12, rtol=0)
    # without the residual: 0.3 rejected and drawn from p: .2 + .15, .3 + .09, .2 + .06
    wrong = emitted_law(without_residual, p, q).sum(1)
    torch.testing.assert_close(wrong, table([0.35, 0.39, 0.26]), atol=1e-12, rtol=0)


def test_enumeration_passes_the_rule_and_no_fault() -> None:
    assert enumerated(speculative_rule).passed
    assert not enumerated(without_residual).passed
    assert not enumerated(ignoring_temperature(0.6)).passed


def test_exact_law_sums_to_one_and_ends_at_the_end_token() -> None:
    trial = tiny_trial()
    law = exact_law(trial, Sampling(temperature=0.8))
    assert sum(law.values()) == pytest.approx(1.0)
    (eos,) = trial.eos_token_ids
    assert all((outcome[-1] == eos) or len(outcome) == trial.tokens for outcome in law)
    assert all(eos not in outcome[:-1] for outcome in law)
    early = exact_law(trial, Sampling(min_new_tokens=2))
    assert all(eos not in outcome[:2] for outcome in early)


def test_chi_squared_by_hand() -> None:
    # 60/40 seen of 50/50: (10²)/50 + (10²)/50 = 4, one degree of freedom: p = 0.0455
    fit = chi_squared(Counter({(0,): 60, (1,): 40}), {(0,): 0.5, (1,): 0.5})
    assert fit.statistic == pytest.approx(4.0)
    assert fit.p_value == pytest.approx(0.0455, abs=1e-4)
    assert chi_squared(Counter({(7,): 1}), {(0,): 1.0}).p_value == 0.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["plain sampling", "all together"])
def test_samples_follow_the_law(kind: type, name: str) -> None:
    assert sampled(name, tiny_trial(kind), SETTINGS[name], 4096, 0).passed


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(SETTINGS))
def test_many_samples_follow_the_law(kind: type, name: str) -> None:
    assert sampled(name, tiny_trial(kind), SETTINGS[name], 40_000, 1).passed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [{"rule": without_residual}, {"cache_type": OffByOneCache}])
def test_samples_show_a_fault(kind: type, change: dict) -> None:
    trial = replace(tiny_trial(kind), **change)
    assert not sampled("faulty", trial, Sampling(), 8192, 0).passed


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not PromptLookup])
def test_samples_show_a_forgotten_temperature(kind: type) -> None:
    trial = replace(tiny_trial(kind), rule=ignoring_temperature(0.6))
    assert not sampled("faulty", trial, SETTINGS["temperature"], 8192, 0).passed


@pytest.mark.parametrize("kind", [Eagle3Drafter, ParallelDrafter])
def test_each_kind_of_fault_is_known_as_what_it_is(kind: type) -> None:
    trial = tiny_trial(kind)
    run = GreedyRun(trial.target, trial.drafter, [[2, 5, 3], [4, 0]], 3, 20, (), 6)
    (worse,) = harmless(trial.drafter)
    assert unharmed(worse, run, trial, 8192, 0).passed
    for wrong in harmful(trial.drafter).values():
        assert not sampled("faulty", replace(trial, drafter=wrong), Sampling(), 8192, 0).passed
    assert is_ever_unsure(trial.drafter)
    assert not is_ever_unsure(PromptLookup())


def test_a_kind_beneath_a_known_one_has_its_trial() -> None:
    assert type(tiny_trial(type("Other", (LayerDrafter,), {})).drafter) is LayerDrafter
    with pytest.raises(KeyError):
        tiny_trial(int)


def test_greedy_is_identical_and_a_wrong_rollback_is_not() -> None:
    assert identical(pair()).passed
    assert identical(half_right()).passed
    assert not identical(replace(half_right(), cache_type=OffByOneCache)).passed


def test_copy_is_always_accepted() -> None:
    check = copy_accepts_all(pair(), SETTINGS)
    assert check.passed, check.evidence
    assert set(check.evidence) == set(SETTINGS)


def test_half_precision_divergence_is_a_near_tie_or_a_failure() -> None:
    assert near_ties_only(half_right(torch.bfloat16)).passed
    wrong = replace(half_right(torch.bfloat16), cache_type=OffByOneCache)
    found = divergences(wrong)
    assert found
    assert not near_ties_only(wrong).passed
    assert Divergence(0, 3, 5, 6, gap=0.01, tolerance=0.05).near_tie
    assert not Divergence(0, 3, 5, None, gap=float("inf"), tolerance=0.05).near_tie


def test_certificate_reads_as_text_and_json() -> None:
    good, bad = Check("a", True, {"n": 1}), Check("b", False, {})
    assert Certificate([good], [good]).passed
    for broken in (Certificate([good, bad], [good]), Certificate([good], [bad])):
        assert not broken.passed
        assert "NOT CERTIFIED" in broken.text()
        assert json.loads(broken.json())["passed"] is False


@pytest.mark.slow
def test_certify_whole() -> None:
    certificate = certify(half_right(), [half_right(torch.bfloat16)], samples=20_000)
    assert certificate.passed, certificate.text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Eagle3Drafter, ParallelDrafter, PromptLookup])
def test_certify_other_kinds(kind: type) -> None:
    trial = tiny_trial(kind)
    run = GreedyRun(trial.target, trial.drafter, [[2, 5, 3, 2, 5], [4, 0, 4]], 3, 24, (), 6)
    certificate = certify(run, samples=20_000)
    assert certificate.passed, certificate.text()
