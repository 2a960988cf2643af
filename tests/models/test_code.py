"""Code that a model brings runs only where that is allowed, and nobody is asked at the terminal."""

import json
import shutil
import sys

import pytest
import torch

from distill.errors import UserError
from distill.models import code
from distill.models.code import allow, auto_config, auto_tokenizer, check_code
from distill.models.draft import load_draft
from distill.models.target import load_target

CONFIG = """
from transformers import LlamaConfig
class OwnConfig(LlamaConfig):
    model_type = "own"
"""
MODEL = """
from transformers import LlamaForCausalLM
from .configuration_own import OwnConfig
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""
TOKENIZER = """
from transformers import PreTrainedTokenizerFast
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture(autouse=True)
def apart(monkeypatch, tmp_path):
    """A folder's code is copied into a cache of transformers: here into one of the test's."""
    cache = tmp_path / "modules"
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(cache))
    for name in [name for name in sys.modules if name.startswith(code.DYNAMIC)]:
        monkeypatch.delitem(sys.modules, name)  # it would be looked for in another test's cache
    monkeypatch.setattr(sys, "path", [*sys.path])  # transformers adds its cache to it
    monkeypatch.setattr(code, "_ALLOWED", set())
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("somebody was asked"))


def edit(path, **values):
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | values))


@pytest.fixture
def own(target, tmp_path):
    """A folder whose model is of a family of its own; running its code leaves a file."""
    folder = tmp_path / "own"
    shutil.copytree(target, folder)
    trace = f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
    (folder / "configuration_own.py").write_text(trace + CONFIG)
    (folder / "modeling_own.py").write_text(MODEL)
    names = {
        "AutoConfig": "configuration_own.OwnConfig",
        "AutoModelForCausalLM": "modeling_own.OwnModel",
    }
    edit(folder / "config.json", model_type="own", architectures=["OwnModel"], auto_map=names)
    return folder


@pytest.fixture
def own_tokenizer(target, tmp_path):
    folder = tmp_path / "words"
    shutil.copytree(target, folder)
    trace = f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
    (folder / "tokenization_own.py").write_text(trace + TOKENIZER)
    edit(
        folder / "tokenizer_config.json",
        tokenizer_class="OwnTokenizer",
        auto_map={"AutoTokenizer": [None, "tokenization_own.OwnTokenizer"]},
    )
    return folder


@pytest.mark.parametrize(
    "use",
    [
        lambda folder: check_code(folder, "target"),
        auto_config,
        lambda folder: load_draft(folder, dtype=torch.float32, device="cpu"),
    ],
)
def test_a_model_with_code_is_refused_in_one_line(own, tmp_path, use):
    with pytest.raises(UserError, match="trust_remote_code=true") as refused:
        use(own)
    assert len(str(refused.value).splitlines()) == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("use", [lambda folder: check_code(folder, "target"), auto_tokenizer])
def test_a_tokenizer_with_code_is_refused_in_one_line(own_tokenizer, tmp_path, use):
    with pytest.raises(UserError, match="trust_remote_code=true"):
        use(own_tokenizer)
    assert not (tmp_path / "ran").exists()


def test_code_that_is_allowed_runs_for_target_draft_and_tokenizer(own, own_tokenizer, tmp_path):
    allow(own)
    check_code(own, "target")
    models = [load(own, dtype=torch.float32, device="cpu") for load in (load_target, load_draft)]
    assert {type(model).__name__ for model in models} == {"OwnModel"}
    assert (tmp_path / "ran").exists()
    allow(own_tokenizer)
    assert type(auto_tokenizer(own_tokenizer)).__name__.startswith("OwnTokenizer")


def test_code_of_a_family_that_is_known_is_not_needed(target, tmp_path):
    """Many hub folders name code for what transformers has by now."""
    folder = tmp_path / "known"
    shutil.copytree(target, folder)
    edit(folder / "config.json", auto_map={"AutoConfig": "configuration_x.XConfig"})
    check_code(folder, "target")
    assert load_target(folder, dtype=torch.float32, device="cpu").config.model_type == "llama"
