"""Values out of range are refused by the user's key, before anything is read."""

import pytest

from distill.data.config import DataConfig, GenerateConfig
from distill.errors import UserError


@pytest.mark.parametrize("name", ["batch_size", "shard_rows", "max_new_tokens"])
def test_sizes_below_one_are_refused(name):
    with pytest.raises(UserError, match=rf"generate\.{name}=0: give values from 1 up"):
        GenerateConfig(**{name: 0})


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1.0), ("temperature", float("nan")), ("top_p", 0.0), ("top_p", 1.5)],
)
def test_a_sampling_that_cannot_be_is_refused(name, value):
    with pytest.raises(UserError, match=rf"generate\.{name}={value}"):
        GenerateConfig(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_length", 0),
        ("prompt_tokens", 0),
        ("train_rows", -1),
        ("validation_rows", -1),
        ("continued", 1.5),
        ("on_policy", -0.1),
        ("on_policy_by", "nobody"),
    ],
)
def test_rows_and_lengths_out_of_range_are_refused(name, value):
    with pytest.raises(UserError, match=rf"data\.{name}"):
        DataConfig(**{name: value})


def test_rows_that_are_answered_anew_are_not_packed():
    with pytest.raises(UserError, match=r"data\.packing=false"):
        DataConfig(on_policy=0.5, packing=True)
