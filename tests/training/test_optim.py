import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from distill.training.config import OptimizerConfig
from distill.training.muon import Muon
from distill.training.optim import (
    build_optimizers,
    scale_learning_rates,
    split_parameters,
)


@pytest.mark.parametrize("tied", [True, False])
def test_decay_acts_on_hidden_matrices_only(tiny, tied: bool) -> None:
    draft = tiny.llama(16, seed=0, tie_word_embeddings=tied)
    names = {id(p): name for name, p in draft.named_parameters()}
    (optimizer,) = build_optimizers(draft, OptimizerConfig(lr=1e-3, weight_decay=0.1))
    decayed, plain = optimizer.param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert optimizer.defaults["fused"]
    assert all("proj" in names[id(p)] for p in decayed["params"])
    assert {names[id(p)].split(".")[-2] for p in plain["params"]} >= {"embed_tokens", "norm"}
    ids = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(ids) == sorted(names)  # every parameter, once


def test_positions_and_biases_of_other_families_do_not_decay() -> None:
    config = GPT2Config(vocab_size=32, n_embd=8, n_layer=1, n_head=2, n_positions=16)
    matrices, others = split_parameters(GPT2LMHeadModel(config))
    assert len(matrices) == 4
    assert {tuple(p.shape) for p in others if p.ndim == 2} == {(32, 8), (16, 8)}


def test_muon_takes_the_matrices_and_leaves_the_rest(tiny) -> None:
    draft = tiny.llama(16, seed=0)
    muon, adamw = build_optimizers(draft, OptimizerConfig(muon=True).for_start("pruned"))
    assert isinstance(muon, Muon)
    assert all(p.ndim == 2 for p in muon.param_groups[0]["params"])
    count = sum(len(g["params"]) for o in (muon, adamw) for g in o.param_groups)
    assert count == len(list(draft.parameters()))


def test_each_group_keeps_its_own_full_rate(tiny) -> None:
    config = OptimizerConfig(lr=0.1, muon=True, muon_lr=0.01)
    optimizers = build_optimizers(tiny.llama(16, seed=0), config)
    scale_learning_rates(optimizers, 0.5)
    scale_learning_rates(optimizers, 0.25)
    assert [o.param_groups[0]["lr"] for o in optimizers] == [0.01 * 0.25, 0.1 * 0.25]


@pytest.mark.parametrize(("init", "rates"), [("pruned", (2.1e-3, 2.8e-3)), ("svd", (2.1e-3, 1e-2))])
def test_a_rate_that_is_left_open_is_that_of_the_drafts_start(init, rates) -> None:
    config = OptimizerConfig(muon=True).for_start(init)
    assert (config.lr, config.muon_lr) == rates
    assert OptimizerConfig(lr=0.5, muon_lr=0.25).for_start(init).lr == 0.5
