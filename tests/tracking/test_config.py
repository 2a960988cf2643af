"""MLF-NAMES: what the registry refuses is known before anything runs."""

import pytest

from distill.errors import UserError
from distill.tracking.config import TrackingConfig


@pytest.mark.parametrize("name", ["org/draft", "it's", "a:b", "x@y", "..", 'say "x"', ""])
def test_names_that_the_registry_or_a_search_cannot_hold_are_refused(name):
    with pytest.raises(UserError, match=r"tracking\.registered_model="):
        TrackingConfig(registered_model=name)


@pytest.mark.parametrize("alias", ["latest", "Latest", "v2", "V10", "", "-x", "a b", "a/b"])
def test_aliases_that_mlflow_keeps_for_itself_are_refused(alias):
    with pytest.raises(UserError, match=r"tracking\.alias="):
        TrackingConfig(alias=alias)


@pytest.mark.parametrize("alias", ["champion", "version2", "v2x", "latest-good"])
def test_other_aliases_are_taken(alias):
    assert TrackingConfig(alias=alias).alias == alias


@pytest.mark.parametrize(
    ("target", "name"),
    [("org/Model-1.7B", "Model-1.7B-draft"), ("/models/my target/", "my-target-draft")],
)
def test_the_registered_model_is_called_after_its_target(target, name):
    assert TrackingConfig().for_target(target).registered_model == name
    own = TrackingConfig(registered_model="own")
    assert own.for_target(target) == own
