import hashlib
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from distill.errors import UserError
from distill.models.draft import initialise_draft, load_draft, save_draft
from distill.models.plan import plan_draft
from distill.models.svd import HeadStatistics
from distill.schema import DraftConfig

IDS = torch.arange(10).view(2, 5)


def logits(model):
    with torch.no_grad():
        return model.eval()(IDS).logits


@pytest.fixture
def make(tiny, tmp_path):
    """Return (target folder, fresh draft) of one family."""

    def build(family="llama", init="svd", statistics=None, **changes):
        made = tiny.model(family, **changes)
        folder = tiny.write_folder(tmp_path / "target", made)
        plan = plan_draft(folder, DraftConfig(parameter_ratio=0.5))
        return folder, initialise_draft(plan, init, folder, 0, statistics)

    return build


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_reloading_gives_identical_logits(make, tmp_path, family, tied):
    """EX-TIED: both kinds, trained a little so that no weight has its initial value."""
    target, draft = make(family, tie_word_embeddings=tied)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(torch.randn_like(weight) * 0.01)
    save_draft(draft, tmp_path / "draft", target)
    again = load_draft(tmp_path / "draft", dtype=torch.float32, device="cpu")
    assert torch.equal(logits(again), logits(draft))
    shared = again.get_input_embeddings().weight is again.get_output_embeddings().weight
    assert shared is tied


def test_saved_dtype_is_the_rounded_weights_and_the_model_is_untouched(make, tmp_path):
    target, draft = make()
    save_draft(draft, tmp_path / "draft", target, torch.bfloat16)
    assert draft.dtype == torch.float32
    stored = load_file(tmp_path / "draft" / "model.safetensors")
    state = draft.state_dict()
    assert all(torch.equal(tensor, state[name].bfloat16()) for name, tensor in stored.items())
    config = json.loads((tmp_path / "draft" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert config["architectures"] == ["LlamaForCausalLM"]


def test_folder_holds_the_targets_tokenizer_and_eos(make, tmp_path):
    target, draft = make()
    save_draft(draft, tmp_path / "draft", target)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        ours, theirs = (
            hashlib.sha256((f / name).read_bytes()) for f in (target, tmp_path / "draft")
        )
        assert ours.digest() == theirs.digest()
    generation = json.loads((tmp_path / "draft" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [201, 5]
    again = load_draft(tmp_path / "draft", dtype=torch.float32, device="cpu")
    assert again.generation_config.eos_token_id == [201, 5]


def test_a_kill_while_saving_keeps_the_previous_folder(make, tmp_path, monkeypatch):
    """CK-ATOMIC."""
    target, draft = make()
    save_draft(draft, tmp_path / "draft", target)
    before = (tmp_path / "draft" / "model.safetensors").read_bytes()

    def killed(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr("distill.models.draft.copy_tokenizer", killed)
    with pytest.raises(KeyboardInterrupt):
        save_draft(draft, tmp_path / "draft", target)
    assert (tmp_path / "draft" / "model.safetensors").read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.usefixtures("no_loading")
def test_inconsistent_folders_are_refused_before_loading(make, tmp_path):
    """EX-TIED: an untied draft whose config says tied, and the reverse."""
    target, draft = make(tie_word_embeddings=False)
    save_draft(draft, tmp_path / "draft", target)
    edit_config(tmp_path / "draft", tie_word_embeddings=True)
    with pytest.raises(UserError, match="set tie_word_embeddings to false"):
        load_draft(tmp_path / "draft", dtype=torch.float32, device="cpu")
    file = tmp_path / "draft" / "model.safetensors"
    tensors = load_file(file)
    del tensors["lm_head.weight"]
    save_file(tensors, file)
    edit_config(tmp_path / "draft", tie_word_embeddings=False)
    with pytest.raises(UserError, match="set tie_word_embeddings to true"):
        load_draft(tmp_path / "draft", dtype=torch.float32, device="cpu")


@pytest.mark.parametrize("tied", [True, False])
def test_inconsistent_models_are_not_saved(make, tmp_path, tied):
    target, draft = make(tie_word_embeddings=tied)
    draft.config.tie_word_embeddings = not tied
    with pytest.raises(UserError, match="tie_word_embeddings"):
        save_draft(draft, tmp_path / "draft", target)
    assert not (tmp_path / "draft").exists()


def test_missing_weights_are_refused(make, tmp_path):
    target, draft = make()
    save_draft(draft, tmp_path / "draft", target)
    file = tmp_path / "draft" / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(UserError, match=r"lacks weights.*model.norm.weight"):
        load_draft(tmp_path / "draft", dtype=torch.float32, device="cpu")


def test_same_seed_same_draft_and_the_callers_generator_is_left_alone(make):
    target, one = make()
    plan = plan_draft(target, DraftConfig(parameter_ratio=0.5))
    state = torch.get_rng_state()
    two = initialise_draft(plan, "svd", target, 0)
    other = initialise_draft(plan, "svd", target, 1)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    projection = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(one.get_parameter(projection), other.get_parameter(projection))


def test_svd_keeps_the_targets_geometry_and_scale(make, tiny):
    _, draft = make(init="svd")
    full = tiny.model().get_output_embeddings().weight.detach()
    rows = draft.get_output_embeddings().weight.detach()
    assert rows.square().mean() == pytest.approx(full.square().mean().item(), rel=1e-4)
    centred = full - full.mean(0)
    _, _, basis = torch.linalg.svd(centred, full_matrices=False)
    kept = centred @ basis[: rows.shape[1]].T
    wanted = kept @ kept.T
    found = rows @ rows.T
    assert torch.allclose(found / found.norm(), wanted / wanted.norm(), atol=1e-4)


def test_statistics_change_the_projection(make):
    statistics = HeadStatistics(torch.arange(202.0), torch.diag(torch.arange(1.0, 65)).double())
    _, plain = make()
    _, weighted = make(statistics=statistics)
    a, b = (model.get_output_embeddings().weight for model in (plain, weighted))
    assert not torch.allclose(a, b)


def test_unknown_inits_name_the_remedy(make):
    with pytest.raises(UserError, match=r"draft\.init=pretrained"):
        make(init="magic")
