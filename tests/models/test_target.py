import json

import pytest
import torch

from distill.errors import UserError
from distill.models.target import context_length, eos_token_ids, load_target, pick_dtype


def test_target_is_frozen_in_eval_mode(target):
    model = load_target(target, dtype=torch.float32, device="cpu")
    assert not model.training
    assert not any(weight.requires_grad for weight in model.parameters())


def test_half_precision_keeps_the_rotary_table_exact(target):
    model = load_target(target, dtype=torch.bfloat16, device="cpu")
    assert model.dtype == torch.bfloat16
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32


def test_missing_weights_are_refused(target):
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(UserError, match=r"lacks weights.*model\.layers\.2"):
        load_target(target, dtype=torch.float32, device="cpu")


@pytest.mark.parametrize(
    ("generation", "config", "wanted"),
    [
        ([201, 5], 7, (201, 5)),
        (9, None, (9,)),
        (None, [7, 8], (7, 8)),
        (None, None, (201,)),
        ([], 7, (7,)),  # EOS-ODD
        ([], [], (201,)),
    ],
)
def test_eos_order_generation_config_then_config_then_tokenizer(target, generation, config, wanted):
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    stored = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(stored | {"eos_token_id": config}))
    assert eos_token_ids(target) == wanted


def test_no_eos_names_the_remedy(target):
    (target / "generation_config.json").unlink()
    (target / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match=r"set eos_token_id in its generation_config\.json"):
        eos_token_ids(target)


def test_context_is_read_from_the_text_part_too(target):
    assert context_length(target) == 64
    (target / "config.json").write_text('{"text_config": {"max_position_embeddings": 9}}')
    assert context_length(target) == 9
    (target / "config.json").write_text("{}")
    with pytest.raises(UserError, match="add max_position_embeddings"):
        context_length(target)


def test_dtype_names(monkeypatch):
    assert pick_dtype("bfloat16", "cpu") == torch.bfloat16
    for capabilities, wanted in (({"amx_bf16": True}, torch.bfloat16), ({}, torch.float32)):
        monkeypatch.setattr("torch.cpu.get_capabilities", lambda found=capabilities: found)
        assert pick_dtype("auto", "cpu") == wanted
    with pytest.raises(UserError, match="use auto, float32"):
        pick_dtype("fp8", "cpu")


def test_broken_json_is_named(target):
    (target / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config.json is not valid JSON"):
        context_length(target)
