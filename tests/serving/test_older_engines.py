"""Exports hold nothing of the target's own files, and an older transformers reads them alike."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from distill.models.draft import save_draft
from distill.models.spelling import portable
from tests.serving.conftest import EOS, VOCABULARY
from tests.tiny import tiny_llama

OLDER = "DISTILL_OLDER_TRANSFORMERS"
"""A folder that `pip install --no-deps --target FOLDER transformers==4.57.3 …` has filled."""
ROTARY = {
    "plain": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500000.0},
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "rope_theta": 20000.0,
        "original_max_position_embeddings": 64,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "rope_theta": 500000.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}
LOGITS = """
import sys, torch, transformers
assert transformers.__version__.startswith("4."), transformers.__version__
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
with torch.inference_mode():
    torch.save(model(torch.arange(60)[None]).logits, sys.argv[2])
"""


@pytest.fixture(params=ROTARY)
def draft(request, target, tmp_path):
    model = tiny_llama(
        1,
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        max_position_embeddings=256,
        rope_parameters=dict(ROTARY[request.param]),
        bos_token_id=256,
        eos_token_id=EOS[0],
        initializer_range=0.3,
    )
    model.config.quantization_config = {"quant_method": "fp8"}
    model.config.auto_map = {"AutoConfig": "configuration_x.XConfig"}
    save_draft(model, tmp_path / "draft", target)
    return model.eval(), tmp_path / "draft"


def test_the_config_has_both_spellings_and_nothing_of_the_targets_files(draft):
    model, folder = draft
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config
    assert "auto_map" not in config
    rope = config["rope_parameters"]
    assert config["rope_theta"] == rope["rope_theta"] == model.config.rope_parameters["rope_theta"]
    assert (config["rope_scaling"] or {"rope_type": "default"})["rope_type"] == rope["rope_type"]
    assert AutoConfig.from_pretrained(folder).rope_parameters == model.config.rope_parameters
    ids = torch.arange(60)[None]
    with torch.inference_mode():
        written = AutoModelForCausalLM.from_pretrained(folder)(ids).logits
        assert torch.equal(written, model(ids).logits)


def test_settings_by_kind_of_layer_have_the_older_names_too():
    full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    sliding = {"rope_type": "default", "rope_theta": 1e4}
    written = portable({"rope_parameters": {"full_attention": full, "sliding_attention": sliding}})
    assert (written["rope_theta"], written["rope_local_base_freq"]) == (1e6, 1e4)
    assert written["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}


@pytest.mark.slow
def test_an_older_transformers_gives_the_same_logits(draft, tmp_path):
    older = os.environ.get(OLDER, "")
    if not (Path(older) / "transformers").is_dir():
        pytest.skip(f"{OLDER} names no folder with transformers 4")
    model, folder = draft
    environment = os.environ | {"PYTHONPATH": older}
    command = [sys.executable, "-c", LOGITS, str(folder), str(tmp_path / "logits.pt")]
    subprocess.run(command, check=True, env=environment)
    with torch.inference_mode():
        expected = model(torch.arange(60)[None]).logits
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt"), expected, atol=1e-5, rtol=1e-5)
