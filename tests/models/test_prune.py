"""Tiny targets: V = 96 tokens, D = 32, 3 layers, 2 groups of 2 heads of 8, 48 channels."""

import copy

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from distill.errors import UserError
from distill.models.draft import initialise_draft, load_draft, save_draft
from distill.models.importance import Calibration, inputs_of, measure_importance, stream_norms
from distill.models.plan import plan_draft
from distill.models.prune import prune
from distill.models.repair import _Error, _refit
from distill.schema import DraftConfig

CONFIGS = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
}
SHAPE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
UNSEEN = torch.randint(0, 96, (2, 20), generator=torch.Generator().manual_seed(9))


@torch.no_grad()
def make_target(family="llama", **changes):
    """Weights large enough to matter, gains and biases that are not 1 and 0."""
    shape = SHAPE | ({} if family == "qwen2" else {"head_dim": 8}) | changes
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[family](**shape))
    for weight in model.parameters():
        weight.mul_(6) if weight.ndim > 1 else weight.add_(torch.randn_like(weight) * 0.3)
    return model.eval().requires_grad_(False)


def calibration(target, rows=6):
    generator = torch.Generator().manual_seed(1)
    return Calibration(
        target, [torch.randint(0, 96, (1, 48), generator=generator) for _ in range(rows)]
    )


def cut(target, **sizes):
    config = copy.deepcopy(target.config)
    for name, value in sizes.items():
        setattr(config, name, value)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: config.num_hidden_layers]
    draft = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    prune(draft, calibration(target))
    return draft.eval()


@torch.no_grad()
def gap(draft, target):
    """Largest difference of logits on tokens that were not calibrated on, as a share of theirs."""
    wanted = target(UNSEEN).logits
    return ((draft(UNSEEN).logits - wanted).abs().max() / wanted.abs().max()).item()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", CONFIGS)
def test_pruning_nothing_gives_the_targets_logits(family, tied):
    target = make_target(family, tie_word_embeddings=tied)
    draft = cut(target)
    assert gap(draft, target) < 1e-4
    same = draft.get_input_embeddings().weight is draft.get_output_embeddings().weight
    assert same is tied


def test_biases_of_every_matrix_are_carried():
    target = make_target(attention_bias=True, mlp_bias=True)
    assert gap(cut(target), target) < 1e-4


def silence_layer(target):
    layer = target.model.layers[1]
    layer.self_attn.o_proj.weight.zero_()
    layer.mlp.down_proj.weight.zero_()
    return {"num_hidden_layers": 2}


def silence_group(target):
    for at, layer in enumerate(target.model.layers):
        layer.self_attn.o_proj.weight[:, 16 * (at % 2) :][:, :16] = 0
    return {"num_attention_heads": 2, "num_key_value_heads": 1}


def silence_channels(target):
    for at, layer in enumerate(target.model.layers):
        layer.mlp.down_proj.weight[:, at::3] = 0
    return {"intermediate_size": 32}


def silence_stream(target):
    """Eight directions, no axes of the stream, that nothing writes."""
    random = torch.randn(32, 32, generator=torch.Generator().manual_seed(2))
    kept = torch.linalg.qr(random)[0][:, :24]
    onto = kept @ kept.T
    embedding = target.model.embed_tokens.weight
    embedding.copy_(embedding @ onto)
    for layer in target.model.layers:
        for writer in (layer.self_attn.o_proj, layer.mlp.down_proj):
            writer.weight.copy_(onto @ writer.weight)
    if target.config.tie_word_embeddings:
        target.model.norm.weight.fill_(1.7)
    return {"hidden_size": 24}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize(
    "silence", [silence_layer, silence_group, silence_channels, silence_stream]
)
def test_what_contributed_nothing_leaves_no_trace(silence, family, tied):
    target = make_target(family, tie_word_embeddings=tied)
    with torch.no_grad():
        sizes = silence(target)
    assert gap(cut(target, **sizes), target) < 2e-3


def test_groups_stay_whole(monkeypatch):
    """The second key-value head, made important, brings its own two query heads along."""
    monkeypatch.setattr("distill.models.prune.repair", lambda *_: None)
    target = make_target()
    with torch.no_grad():
        for layer in target.model.layers:
            layer.self_attn.o_proj.weight[:, 16:] *= 10
    draft = cut(target, num_attention_heads=2, num_key_value_heads=1)
    for own, source in zip(draft.model.layers, target.model.layers, strict=True):
        gain = source.input_layernorm.weight
        ours, theirs = own.self_attn, source.self_attn
        assert torch.allclose(ours.q_proj.weight, theirs.q_proj.weight[16:] * gain)
        assert torch.allclose(ours.k_proj.weight, theirs.k_proj.weight[8:] * gain)
        assert torch.allclose(ours.v_proj.weight, theirs.v_proj.weight[8:] * gain)
        assert torch.equal(ours.o_proj.weight, theirs.o_proj.weight[:, 16:])


SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def test_repair_makes_up_for_channels_that_the_kept_ones_predict(monkeypatch):
    """Channel 24 + i copies channel i but writes something else: a sum of columns is exact."""
    target = make_target()
    with torch.no_grad():
        for layer in target.model.layers:
            for reader in (layer.mlp.gate_proj, layer.mlp.up_proj):
                reader.weight[24:] = reader.weight[:24]
            layer.mlp.down_proj.weight[:, 24:] *= 0.2
    repaired = cut(target, intermediate_size=24)
    columns = target.model.layers[0].mlp.down_proj.weight
    own = repaired.model.layers[0].mlp.down_proj.weight
    summed = columns[:, :24] + columns[:, 24:]
    assert (own - summed).norm() < 0.02 * summed.norm()
    monkeypatch.setattr("distill.models.prune.repair", lambda *_: None)
    assert gap(repaired, target) < 0.5 * gap(cut(target, intermediate_size=24), target)


def test_a_fit_is_over_all_calibration_sequences():
    """Two sequences lack 1 and 3 at an input of 1: 2 more, but for a ridge of a thousandth."""
    matrix = torch.nn.Linear(1, 1, bias=False).requires_grad_(False)
    matrix.weight.fill_(5.0)
    _refit(_Error(matrix, torch.ones(1, 1), torch.tensor([[lack]])) for lack in (1.0, 3.0))
    assert matrix.weight.item() == pytest.approx(5 + 2 / 1.001)


def test_importance_is_energy_relative_to_the_stream():
    target = make_target()
    sequences = calibration(target, rows=2)
    found = measure_importance(sequences)
    layer, norms = target.model.layers[0], stream_norms(target, range(3))
    total = torch.zeros(48)
    for ids in sequences.sequences:
        acts, stream = inputs_of(target, [layer.mlp.down_proj, norms[2]], ids)
        for channel in range(48):
            written = acts[:, channel, None] * layer.mlp.down_proj.weight[:, channel]
            total[channel] += (written.square().sum(-1) / stream.square().sum(-1)).sum()
    assert torch.allclose(found.channels[0].float(), total / 96, rtol=1e-4)
    assert (found.layers > 0).all()
    assert found.groups.shape == (3, 2)


def test_hooks_are_gone_afterwards():
    target = make_target()
    cut(target, **SMALL)
    assert not any(module._forward_pre_hooks for module in target.modules())


@pytest.fixture
def folder(tiny, tmp_path):
    def write(family="llama", **changes):
        return tiny.write_folder(tmp_path / "target", tiny.model(family, **changes))

    return write


def request(**sizes):
    return DraftConfig(init="pruned", parameter_ratio=0.5, **sizes)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_planned_pruned_saved_and_loaded(folder, tiny, tmp_path, family, tied):
    place = folder(family, tie_word_embeddings=tied)
    plan = plan_draft(place, request())
    target = tiny.model(family, tie_word_embeddings=tied)
    draft = initialise_draft(plan, "pruned", place, 0, calibration=calibration(target)).eval()
    assert plan.config.num_attention_heads == 2 * plan.config.num_key_value_heads
    assert draft.model.layers[0].self_attn.head_dim == 16
    save_draft(draft, tmp_path / "draft", place)
    again = load_draft(tmp_path / "draft", dtype=torch.float32, device="cpu")
    with torch.no_grad():
        assert torch.equal(again(UNSEEN).logits, draft(UNSEEN).logits)


def test_calibration_is_asked_for(folder):
    place = folder()
    with pytest.raises(ValueError, match="calibration"):
        initialise_draft(plan_draft(place, request()), "pruned", place, 0)


def test_the_mode_of_the_draft_is_left_alone():
    target = make_target()
    draft = AutoModelForCausalLM.from_config(target.config)
    for training in (True, False):
        prune(draft.train(training), calibration(target, rows=2))
        assert draft.training is training


@pytest.mark.parametrize(
    ("family", "sizes", "remedy"),
    [
        ("gpt2", {}, "draft.init=svd"),
        ("llama", {"num_hidden_layers": 3}, "at most 2"),
        ("llama", {"intermediate_size": 161}, "at most 160"),
        ("llama", {"num_attention_heads": 3}, "change one"),
        ("llama", {"num_attention_heads": 2, "num_key_value_heads": 2}, "groups of 2"),
        ("qwen2", {"hidden_size": 48}, "multiple of 32"),
        ("llama", {"tie_word_embeddings": True}, "tie_word_embeddings null"),
    ],
)
@pytest.mark.usefixtures("no_loading")
def test_impossible_cuts_name_the_remedy(tiny, tmp_path, family, sizes, remedy):
    changes = {"tie_word_embeddings": False}
    tiny.config(family, **changes).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=remedy):
        plan_draft(tmp_path, request(**sizes))


@pytest.mark.usefixtures("no_loading")
def test_layers_that_attend_differently_are_refused(tiny, tmp_path):
    kinds = ["full_attention", "sliding_attention"]
    tiny.config("qwen2", layer_types=kinds, use_sliding_window=True).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="different ways"):
        plan_draft(tmp_path, request())


@pytest.mark.usefixtures("no_loading")
def test_llama_8b_experiment_is_one_billion(tmp_path):
    """Llama-3.1-8B's published shape, and the sizes of conf/experiment/llama_8b_pruned.yaml."""
    LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        num_hidden_layers=32,
        intermediate_size=14336,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=False,
    ).save_pretrained(tmp_path)
    sizes = DraftConfig(
        init="pruned",
        num_hidden_layers=8,
        hidden_size=2048,
        intermediate_size=8192,
        num_attention_heads=16,
        num_key_value_heads=4,
    )
    plan = plan_draft(tmp_path, sizes)
    layer = 2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192 + 2 * 2048
    assert plan.parameters == 2 * 128256 * 2048 + 8 * layer + 2048
    assert plan.config.head_dim == 128
    assert plan.ratio == pytest.approx(0.126, abs=1e-3)
