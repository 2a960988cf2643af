"""A target and a draft that bring code: refused in one line, or served where that is allowed."""

import json
import shutil
import sys

import pytest

from distill.models import code

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


@pytest.fixture
def own(target, tmp_path, monkeypatch):
    cache = tmp_path / "modules"
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(cache))
    for name in [name for name in sys.modules if name.startswith(code.DYNAMIC)]:
        monkeypatch.delitem(sys.modules, name)  # it would be looked for in another test's cache
    monkeypatch.setattr(sys, "path", [*sys.path])  # transformers adds its cache to it
    monkeypatch.setattr(code, "_ALLOWED", set())
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("somebody was asked"))
    folder = tmp_path / "own"
    shutil.copytree(target, folder)
    (folder / "configuration_own.py").write_text(CONFIG)
    (folder / "modeling_own.py").write_text(MODEL)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "architectures": ["OwnModel"]}
    config["auto_map"] = {
        "AutoConfig": "configuration_own.OwnConfig",
        "AutoModelForCausalLM": "modeling_own.OwnModel",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


READY = ("pipeline=evaluate", "draft=ready", "evaluate.num_prompts=2")


@pytest.mark.parametrize(
    "arguments",
    [
        (*READY, "target.id={own}", "draft.model.id={target}"),
        (*READY, "draft.model.id={own}"),
        (*READY, "draft.model.id={own}", "target.trust_remote_code=true"),
        ("pipeline=evaluate", "evaluate.candidates=[{own}]"),
        ("target.id={own}",),
        ("target.id={own}", "target.trust_remote_code=true"),  # of which no draft can be made
        ("pipeline=probe", "target.id={own}", "probe.measure=false"),
    ],
)
def test_code_that_is_not_allowed_is_refused_in_one_line(distill, own, target, capsys, arguments):
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        distill(*(one.format(own=own, target=target) for one in arguments))
    assert stopped.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "code of its own" in said


def test_code_that_is_allowed_works_for_target_and_draft(distill, own, tmp_path):
    distill(
        *READY,
        f"target.id={own}",
        "target.trust_remote_code=true",
        f"draft.model.id={own}",
        "draft.model.trust_remote_code=true",
    )
    (manifest,) = (tmp_path / "outputs" / "artifacts" / "judge").glob("*/manifest.json")
    assert json.loads(manifest.read_text())["counts"]["alpha"] == pytest.approx(1.0, abs=1e-6)
