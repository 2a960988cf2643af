"""An EAGLE-3 head's start, size and folder."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from distill.errors import UserError
from distill.models.config import DraftConfig
from distill.models.draft import load_draft, save_draft
from distill.models.eagle3 import Eagle3Head, feature_layers, head_config, make_head
from distill.models.head_plan import choose_size, keep_ids, plan_head, start_head
from tests.pipelines.conftest import write_model
from tests.tiny import tiny_llama

KEPT = torch.tensor([0, 2, 3, 7, 11])
COMMON_FORM = {
    "fc.weight": (16, 48),
    "midlayer.input_layernorm.weight": (16,),
    "midlayer.hidden_norm.weight": (16,),
    "midlayer.self_attn.q_proj.weight": (16, 32),
    "midlayer.self_attn.k_proj.weight": (8, 32),
    "midlayer.self_attn.v_proj.weight": (8, 32),
    "midlayer.self_attn.o_proj.weight": (16, 16),
    "midlayer.post_attention_layernorm.weight": (16,),
    "midlayer.mlp.gate_proj.weight": (32, 16),
    "midlayer.mlp.up_proj.weight": (32, 16),
    "midlayer.mlp.down_proj.weight": (16, 32),
    "norm.weight": (16,),
    "lm_head.weight": (5, 16),
    "d2t": (5,),
    "t2d": (40,),
}
"""What all engines load, of the tiny target's widths."""


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("deep"), layers=6)


def test_features_by_hand() -> None:
    assert feature_layers(30) == (2, 15, 27)
    assert feature_layers(6) == (2, 3, 3)
    with pytest.raises(UserError, match="it needs 6 or more"):
        feature_layers(5)


def test_a_head_starts_as_the_targets_last_layer() -> None:
    target = tiny_llama(0, num_hidden_layers=6)
    head = make_head(head_config(target.config, len(KEPT)), KEPT, target)
    last = target.model.layers[-1]
    features = torch.randn(1, 3, 48)
    assert torch.equal(head.fuse(features), features[..., 32:])
    assert torch.equal(head.midlayer.self_attn.k_proj.weight[:, 16:], last.self_attn.k_proj.weight)
    assert torch.equal(head.midlayer.mlp.down_proj.weight, last.mlp.down_proj.weight)
    assert torch.equal(head.lm_head.weight, target.lm_head.weight[KEPT])
    assert head.kept.tolist() == KEPT.tolist()
    assert head.t2d.nonzero()[:, 0].tolist() == KEPT.tolist()


def test_a_target_of_another_family_gets_a_random_layer() -> None:
    config = GPT2Config(vocab_size=40, n_embd=16, n_layer=6, n_head=2, n_positions=64)
    target = GPT2LMHeadModel(config).eval()
    head = make_head(head_config(config, len(KEPT)), KEPT, target)
    assert torch.equal(head.lm_head.weight, target.lm_head.weight[KEPT])
    assert 0 < head.fc.weight.std() < 0.1


def test_the_folder_has_the_common_form(deep, tmp_path) -> None:
    target = tiny_llama(0, num_hidden_layers=6)
    head = make_head(head_config(target.config, len(KEPT)), KEPT, target)
    save_draft(head, tmp_path / "head", deep)
    stored = load_file(tmp_path / "head" / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in stored.items()} == COMMON_FORM
    assert (stored["d2t"].dtype, stored["t2d"].dtype) == (torch.int64, torch.bool)
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    expected = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "vocab_size": 40,
        "draft_vocab_size": 5,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
    }
    assert {name: config[name] for name in expected} == expected
    for dtype in (torch.float32, torch.bfloat16):
        loaded = load_draft(tmp_path / "head", dtype=dtype, device="cpu")
        assert isinstance(loaded, Eagle3Head)
        assert loaded.rotary.inv_freq.dtype == torch.float32
        assert torch.equal(loaded.fc.weight, head.fc.weight.to(dtype))


@pytest.mark.parametrize("change", ["missing", "shape", "extra"])
def test_a_folder_of_another_form_is_one_line(deep, tmp_path, change) -> None:
    target = tiny_llama(0, num_hidden_layers=6)
    save_draft(make_head(head_config(target.config, 5), KEPT, target), tmp_path / "head", deep)
    path = tmp_path / "head" / "model.safetensors"
    tensors = load_file(path)
    if change == "missing":
        del tensors["fc.weight"]
    elif change == "shape":
        tensors["fc.weight"] = tensors["fc.weight"][:, :32].contiguous()
    else:
        tensors["fc.bias"] = torch.zeros(16)
    save_file(tensors, path)
    with pytest.raises(UserError, match=r"no EAGLE-3 head of the common form: fc\."):
        load_draft(tmp_path / "head", dtype=torch.float32, device="cpu")


def test_the_most_frequent_ids_are_kept_and_the_special_ones() -> None:
    counts = torch.tensor([5, 0, 9, 1, 9, 0])
    assert keep_ids(counts, 3, (5,)).tolist() == [2, 4, 5]
    assert keep_ids(counts, 4, (5,)).tolist() == [0, 2, 4, 5]
    assert keep_ids(torch.zeros(6), 2, ()).tolist() == [0, 1]  # of equals the first


def test_the_size_weighs_coverage_against_cost() -> None:
    target = tiny_llama(0, vocab_size=8192, num_hidden_layers=6)
    config = head_config(target.config, 1)
    steep, flat = torch.zeros(8192), torch.ones(8192)
    steep[:900] = 1.0
    assert choose_size(steep, config, 10**7) == 1024  # a larger one covers nothing more
    assert choose_size(flat, config, 10**9) == 8192  # rows cost nothing beside this target


def test_a_plan_and_a_start_refuse_what_cannot_be(deep) -> None:
    draft = DraftConfig(init="eagle3", vocabulary=40)
    plan = plan_head(deep, draft)
    assert plan.parameters == sum(weight.numel() for weight in Eagle3Head(plan.config).parameters())
    with pytest.raises(UserError, match="vocabulary is 999"):
        plan_head(deep, DraftConfig(init="eagle3", vocabulary=999))
    target = tiny_llama(0, vocab_size=258, num_hidden_layers=6)
    first, again = (start_head(target, deep, torch.arange(258), 40, seed=3) for _ in range(2))
    assert all(map(torch.equal, first.parameters(), again.parameters()))
    assert 257 in first.kept.tolist()
