"""A target whose text model is a part of a larger one that sees pictures (Gemma 3)."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    SiglipVisionConfig,
)

from .conftest import write_tokenizer


@pytest.fixture(params=["names of transformers 4", "names of transformers 5"])
def wrapped(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    text = Gemma3TextConfig(
        vocab_size=258,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        sliding_window=64,
        bos_token_id=256,
        eos_token_id=257,
        pad_token_id=0,
    )
    vision = SiglipVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
    )
    config = Gemma3Config(
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=4,
        image_token_index=200,
        boi_token_index=201,
        eoi_token_index=202,
    )
    folder = tmp_path / "wrapped"
    Gemma3ForConditionalGeneration(config).save_pretrained(folder)
    write_tokenizer(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [257]}))
    if "5" in request.param:
        tensors = load_file(folder / "model.safetensors")
        renamed = {
            name.replace("language_model.model.", "model.language_model."): tensor
            for name, tensor in tensors.items()
        }
        assert renamed.keys() != tensors.keys()
        save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.slow
def test_its_text_part_is_distilled_and_served(distill, wrapped, tmp_path):
    distill(f"target.id={wrapped}", "draft=svd", "draft.hidden_size=16", "budget.tokens=200")
    [exported] = (tmp_path / "outputs" / "artifacts" / "export").glob("*/*/config.json")
    config = json.loads(exported.read_text())
    assert config["model_type"] == "gemma3_text"
    assert not {"vision_config", "text_config"} & config.keys()
    card = (exported.parent / "README.md").read_text()
    assert str(tmp_path) not in card
