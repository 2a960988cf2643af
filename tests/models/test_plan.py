import pytest

from distill.errors import UserError
from distill.models.plan import build_meta, plan_draft
from distill.schema import DraftConfig

pytestmark = pytest.mark.usefixtures("no_loading")


@pytest.fixture
def folder(tiny, tmp_path):
    """Only a config: the plan reads no weights."""

    def write(family="llama", **changes):
        tiny.config(family, **changes).save_pretrained(tmp_path / "target")
        return tmp_path / "target"

    return write


@pytest.fixture
def smollm(folder):
    return folder(
        vocab_size=49152,
        hidden_size=576,
        num_hidden_layers=30,
        intermediate_size=1536,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        tie_word_embeddings=True,
    )


def test_a_tenth_of_135m_worked_by_hand(smollm):
    plan = plan_draft(smollm, DraftConfig())
    config = plan.config
    assert (config.hidden_size, config.num_hidden_layers, config.intermediate_size) == (224, 4, 608)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 1, 64)
    attention = 2 * 224 * 256 + 2 * 224 * 64
    layer = attention + 3 * 224 * 608 + 2 * 224
    assert plan.parameters == 49152 * 224 + 4 * layer + 224
    assert plan.target_parameters == 134_515_008
    assert plan.ratio == pytest.approx(0.0983, abs=1e-4)
    assert plan.bytes_per_token == 2 * plan.parameters  # tied: every weight is read
    assert plan.head_share == pytest.approx(49152 * 224 / plan.parameters)


def test_a_pruned_tenth_keeps_twice_the_heads_and_channels(smollm):
    config = plan_draft(smollm, DraftConfig(init="pruned")).config
    # 192 / 576 of 9 heads and of 1536 channels is 3 and 512
    assert (config.hidden_size, config.num_attention_heads, config.num_key_value_heads) == (
        192,
        6,
        2,
    )
    assert config.intermediate_size == 1024
    # 192·(6 + 2 + 2 + 6)·64 attention, 3·192·1024 MLP, 2·192 norms; what a tenth still holds
    layer = 192 * 16 * 64 + 3 * 192 * 1024 + 2 * 192
    assert config.num_hidden_layers == (13_451_500 - 49152 * 192 - 192) // layer == 5


@pytest.mark.parametrize("ratio", [0.5, 0.9])
def test_a_pruned_draft_keeps_no_more_than_there_is(smollm, ratio):
    config = plan_draft(smollm, DraftConfig(init="pruned", parameter_ratio=ratio)).config
    assert config.num_attention_heads <= 9
    assert config.intermediate_size <= 1536


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.8])
def test_never_over_the_budget_and_of_the_family(folder, family, ratio):
    plan = plan_draft(folder(family, num_hidden_layers=6), DraftConfig(parameter_ratio=ratio))
    assert plan.config.model_type == family
    assert plan.ratio <= ratio
    assert plan.config.vocab_size == 256
    assert plan.config.hidden_size % plan.config.num_attention_heads == 0
    assert plan.parameters == sum(w.numel() for w in build_meta(plan.config).parameters())


def test_explicit_sizes_override(folder):
    draft = DraftConfig(
        hidden_size=32,
        num_hidden_layers=1,
        intermediate_size=40,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    config = plan_draft(folder(), draft).config
    assert {name: getattr(config, name) for name in vars(draft) if hasattr(config, name)} == {
        name: value for name, value in vars(draft).items() if hasattr(config, name)
    }


@pytest.mark.parametrize("sizes", [{"num_attention_heads": 3}, {"num_key_value_heads": 3}])
def test_width_is_chosen_to_fit_the_heads_asked_for(folder, sizes):
    config = plan_draft(folder(), DraftConfig(parameter_ratio=0.5, **sizes)).config
    assert config.hidden_size % 3 == 0
    assert config.num_attention_heads % config.num_key_value_heads == 0


def test_untied_bytes_leave_out_the_looked_up_embedding(folder):
    plan = plan_draft(folder(tie_word_embeddings=False), DraftConfig(parameter_ratio=0.5))
    embedding = 256 * plan.config.hidden_size
    assert plan.bytes_per_token == 2 * (plan.parameters - embedding)
    assert plan.head_share == pytest.approx(embedding / (plan.parameters - embedding))


def test_lists_with_an_entry_per_layer_follow_the_depth(folder):
    target = folder("qwen2", num_hidden_layers=4)
    config = plan_draft(target, DraftConfig(parameter_ratio=0.5, num_hidden_layers=2)).config
    assert len(config.layer_types) == 2


def test_table_says_what_a_reader_asks(smollm):
    table = plan_draft(smollm, DraftConfig()).table()
    for word in ("13.22 M", "0.0983", "134.52 M", "26.44 MB", "head share", "4 x 224", "tied"):
        assert word in table


@pytest.mark.parametrize(
    ("draft", "remedy"),
    [
        ({"parameter_ratio": 0.001}, "raise it"),
        ({"hidden_size": 50, "num_attention_heads": 4}, "change one"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "change one"),
        ({"hidden_size": 64, "num_hidden_layers": 2}, "lower draft.hidden_size"),
        ({"hidden_size": 128, "num_hidden_layers": 4}, "lower draft.hidden_size"),
    ],
)
def test_impossible_plans_name_the_remedy(folder, draft, remedy):
    with pytest.raises(UserError, match=remedy):
        plan_draft(folder(), DraftConfig(**draft))


def test_sizes_the_family_lacks_are_refused(folder):
    with pytest.raises(UserError, match="gpt2 has no num_key_value_heads"):
        plan_draft(folder("gpt2"), DraftConfig(num_key_value_heads=2))


def test_mixture_of_experts_is_refused(tmp_path):
    from transformers import MixtralConfig

    MixtralConfig(num_hidden_layers=2, hidden_size=64).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"draft\.init=pretrained"):
        plan_draft(tmp_path, DraftConfig())
