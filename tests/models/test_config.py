"""A draft that cannot be is refused by the user's key, before a model is read."""

import pytest

from distill.errors import UserError
from distill.models.config import DraftConfig, ModelConfig


@pytest.mark.parametrize("ratio", [0.0, 1.0, -0.1])
def test_a_draft_is_smaller_than_its_target_and_more_than_nothing(ratio):
    with pytest.raises(UserError, match=r"draft\.parameter_ratio is .* use a share"):
        DraftConfig(parameter_ratio=ratio)


@pytest.mark.parametrize("sizes", [{"hidden_size": 0}, {"num_hidden_layers": -1}])
def test_sizes_are_at_least_one(sizes):
    with pytest.raises(UserError, match="at least 1"):
        DraftConfig(**sizes)


def test_an_unknown_start_names_those_that_there_are():
    with pytest.raises(UserError, match=r"draft\.init=random is unknown: .*pruned"):
        DraftConfig(init="random")


@pytest.mark.parametrize("init", ["pretrained", "ready"])
def test_a_draft_that_there_is_has_to_be_named(init):
    with pytest.raises(UserError, match=r"draft\.model\.id=NAME"):
        DraftConfig(init=init)
    model = ModelConfig("hub", "some/model")
    assert DraftConfig(init=init, model=model).existing is model
