"""MLF-METRIC: any name from data becomes a key that MLflow takes, and two never become one."""

import itertools

import pytest
from mlflow.utils.validation import _validate_metric_name, _validate_param_name

from distill.tracking.names import LONGEST, mlflow_key

ODD = [
    "C++ @k=1, naïve (日本)", "C++ @k=1; naïve (日本)", "draft(v2)", "draft[v1]", "[/INST]", "$x$",
    "", ".", "..", "../../escape", "/root", "a//b", "a/./b", "a/../b", "trailing/", "...", "..x",
    "\x1b[31m", "\n", "emoji 🙂", "x" * 400, "y" * 251, "%2e%2e", "a\\b", "'; drop table", '"',
]  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_mlflow_takes_the_key_of_any_name(name):
    for whole in (name, f"prompts.domains.{name}", f"{name}/speedup"):
        _validate_metric_name(mlflow_key(whole))
        _validate_param_name(mlflow_key(whole))


def test_two_names_never_share_a_key():
    keys = [mlflow_key(name) for name in ODD]
    assert len(set(keys)) == len(ODD)
    assert all(len(one) <= LONGEST for one in keys)


@pytest.mark.parametrize(
    "name", ["train/loss", "objective.divergence:svd 5/tokens-10", "naïve", "math", "a.b-c_d"]
)
def test_a_name_that_mlflow_takes_is_its_own_key(name):
    assert mlflow_key(name) == name


def test_names_that_are_mended_alike_stay_apart():
    for one, other in itertools.combinations(["a(b", "a[b", "a@b", "a=b"], 2):
        assert mlflow_key(one) != mlflow_key(other)
