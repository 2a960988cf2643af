"""Both forward paths against transformers' own forward, over ragged rows."""

import pytest
import torch
from transformers import FalconConfig, FalconForCausalLM

from distill.errors import UserError
from distill.speculative.cache import RaggedCache
from distill.speculative.decode import decode
from distill.speculative.forward import GenericForward, forward_for
from distill.speculative.llama_forward import LlamaForward

ROWS = [[4, 8, 15, 16, 23, 42, 9, 1, 2, 3], [7, 7, 5], [60, 61, 62, 63, 64, 65]]


READS = (1, 3, 2)


@torch.no_grad()
def check(forward, model, *, width: int = 2, fixed: bool = False, tolerance: float = 1e-4):
    """Prefill all but `width` tokens of every row, feed those, compare with whole rows."""
    forward.refresh()
    cache = RaggedCache(len(ROWS), model.device, fixed=fixed)
    longest = max(map(len, ROWS))
    prefix = [row[:-width] + [0] * (longest - len(row)) for row in ROWS]
    cache.begin(longest - width)
    early = forward(torch.tensor(prefix), cache, False, READS)
    cache.advance([len(row) - width for row in ROWS])
    cache.begin(width)
    late = forward(torch.tensor([row[-width:] for row in ROWS]), cache, True, READS)
    assert early.logits is None
    assert forward(torch.tensor([row[-width:] for row in ROWS]), cache).states is None
    for i, row in enumerate(ROWS):
        whole = model(torch.tensor([row]), use_cache=False, output_hidden_states=True)
        states = torch.cat([whole.hidden_states[number][0] for number in READS], -1)
        read = torch.cat((early.states[i, : len(row) - width], late.states[i]))
        for got, expected in ((late.logits[i], whole.logits[0, -width:]), (read, states)):
            error = (got - expected).norm() / expected.norm()
            assert error < tolerance, error


@pytest.mark.parametrize("width", [1, 2])
def test_every_family(any_model, width):
    check(GenericForward(any_model), any_model, width=width)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("fixed", [False, True])
def test_llama_forward_equals_the_models_own_forward(llama_like, width, fixed):
    forward = forward_for(llama_like)
    assert isinstance(forward, LlamaForward)
    check(forward, llama_like, width=width, fixed=fixed)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_llama_forward_in_other_precisions(make_llama, dtype):
    model = make_llama(attention_bias=True).to(dtype)
    check(forward_for(model), model, tolerance=1e-6 if dtype == torch.float64 else 0.05)


@torch.no_grad()
def test_llama_forward_takes_small_bf16_weights_that_were_trained_since(make_llama):
    model = make_llama().bfloat16()
    forward = forward_for(model)
    check(forward, model, tolerance=0.05)
    for parameter in model.parameters():
        parameter.data = parameter.data + 0.1 * torch.randn_like(parameter)
    check(forward, model, tolerance=0.05)


def test_llama_forward_takes_weights_that_were_trained_since(make_llama):
    model = make_llama()
    forward = forward_for(model)
    check(forward, model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data = parameter.data + 0.1 * torch.randn_like(parameter)
    check(forward, model)


def test_alignment_keeps_values_and_ties(make_llama):
    """One weight starts 8 bytes past a cache line; two others share storage and go on so."""
    model = make_llama()
    up, down = model.model.layers[0].mlp.up_proj, model.model.layers[0].mlp.down_proj
    values = up.weight.detach().clone()
    buffer = torch.empty(values.numel() + 32)
    shift = next(n for n in range(32) if buffer[n:].data_ptr() % 64 == 8)
    up.weight.data = buffer[shift : shift + values.numel()].view_as(values).copy_(values)
    tied = model.model.layers[1].mlp.down_proj
    tied.weight.data = down.weight.data
    check(forward_for(model), model)
    assert up.weight.data_ptr() % 64 == 0
    torch.testing.assert_close(up.weight.detach(), values, rtol=0, atol=0)
    assert tied.weight.data_ptr() == down.weight.data_ptr()


@torch.no_grad()
def test_a_model_whose_states_were_once_asked_for_still_goes_the_short_way(make_llama):
    """Transformers leaves hooks on it, which only watch."""
    model = make_llama()
    model(torch.tensor([[1, 2]]), output_hidden_states=True)
    assert isinstance(forward_for(model), LlamaForward)


def test_what_the_llama_forward_does_not_know_goes_the_general_way(make_llama):
    gelu = make_llama(hidden_act="gelu")
    hooked = make_llama()
    hooked.model.layers[0].register_forward_hook(lambda *_: None)
    for model in (gelu, hooked):
        assert isinstance(forward_for(model), GenericForward)


def test_eager_attention(make_llama):
    model = make_llama(attn_implementation="eager")
    check(GenericForward(model), model)


def test_dynamic_rotary_scaling_is_refused(make_llama):
    rotary = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    with pytest.raises(UserError, match="dynamic rotary"):
        decode(make_llama(rope_parameters=rotary), [[1]])


def test_alibi_is_refused():
    config = FalconConfig(
        vocab_size=97, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, alibi=True
    )
    with pytest.raises(UserError, match="ALiBi"):
        decode(FalconForCausalLM(config).eval(), [[1]])


def test_chunked_attention_is_refused(make_llama):
    model = make_llama()
    model.config.layer_types = ["chunked_attention"] * 3
    with pytest.raises(UserError, match="chunked_attention"):
        forward_for(model)


def test_a_model_that_cannot_prove_itself_is_refused(make_llama):
    """Positions that ignore the cache are what an unknown family may do."""

    def forget(_, args, kwargs):
        if kwargs.get("position_ids") is not None:
            kwargs["position_ids"] = kwargs["position_ids"] * 0 + 3
        return args, kwargs

    model = make_llama()
    model.register_forward_pre_hook(forget, with_kwargs=True)
    with pytest.raises(UserError, match="ragged cache"):
        decode(model, [[1, 2, 3]])
