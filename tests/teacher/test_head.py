import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    FalconH1Config,
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    Qwen2Config,
)

from distill.errors import UserError
from distill.teacher.head import check_head, head_of

SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 1.0,
    "pad_token_id": 0,
}
CONFIGS = {
    "llama": LlamaConfig(**SMALL),
    "qwen2": Qwen2Config(**SMALL, tie_word_embeddings=True),
    "gpt2": GPT2Config(vocab_size=64, n_embd=16, n_layer=2, n_head=2, initializer_range=1.0),
    "gemma2": Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=3.0),
    "cohere2": Cohere2Config(**SMALL, logit_scale=0.25),
    "granite": GraniteConfig(**SMALL, logits_scaling=8.0),
    "falcon_h1": FalconH1Config(
        **SMALL, lm_head_multiplier=0.5, mamba_d_ssm=16, mamba_n_heads=2, mamba_d_head=8
    ),
}


@pytest.mark.parametrize("family", CONFIGS)
def test_head_of_last_hidden_state_is_the_models_own_logits(family: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[family]).eval()
    ids = torch.randint(0, 64, (2, 5))
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        hidden = model.base_model(input_ids=ids).last_hidden_state
        logits = head_of(model).logits(hidden)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    check_head(model)


def test_a_family_with_unknown_logits_is_refused() -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS["granite"])
    model.config.model_type = "unheard_of"  # its logits_scaling is then not looked for
    with pytest.raises(UserError, match="unheard_of"):
        check_head(model)


def test_half_precision_is_not_mistaken_for_another_family() -> None:
    torch.manual_seed(0)
    check_head(AutoModelForCausalLM.from_config(CONFIGS["cohere2"]).bfloat16())
