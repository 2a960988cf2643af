"""Input that cannot work is refused before any work, with the remedy."""

import pytest

from distill.errors import UserError
from distill.speculative.decode import decode
from distill.speculative.drafters import LayerDrafter, ModelDrafter
from distill.speculative.round_length import Confident
from distill.speculative.sampling import Sampling

GREEDY = Sampling(temperature=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": [[]]}, "empty"),
        ({"prompts": [[97]]}, "outside the shared vocabulary"),
        ({"prompts": [[-1]]}, "outside the shared vocabulary"),
        ({"prompts": [[1] * 128]}, "context holds 128"),
        ({"num_draft_tokens": -1}, "num_draft_tokens"),
        ({"drafter": None}, "drafter="),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"vocabulary_size": 98}, "vocabulary_size"),
        ({"sampling": [GREEDY]}, "one each"),
        ({"row_ids": [1]}, "one each"),
    ],
)
def test_bad_input_is_refused(target, draft, change, message):
    settings = {"drafter": ModelDrafter(draft), "num_draft_tokens": 2, **change}
    prompts = settings.pop("prompts", [[1], [2]])
    with pytest.raises(UserError, match=message):
        decode(target, prompts, **settings)


def test_a_drafter_of_another_tokenizer_is_refused(target, make_llama):
    drafter = ModelDrafter(make_llama(vocab_size=2000))
    with pytest.raises(UserError, match="not the same tokenizer"):
        decode(target, [[1]], drafter=drafter, num_draft_tokens=1)


@pytest.mark.parametrize("layers", [0, 3])
def test_layer_drafter_needs_fewer_layers_than_the_target(target, layers):
    with pytest.raises(UserError, match="between 1 and 2"):
        LayerDrafter(target, layers=layers)


@pytest.mark.parametrize(("most", "threshold"), [(0, 0.5), (2, -0.1), (2, 1.1)])
def test_impossible_confident_settings_are_refused(most, threshold):
    with pytest.raises(UserError, match="max_draft_tokens" if most == 0 else "threshold"):
        Confident(most, threshold)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": -1.0}, r"temperature must be 0 \(greedy\) or more \(`{temperature: -1}`"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\]"),
        ({"min_new_tokens": -2}, "min_new_tokens must be 0 or more"),
    ],
)
def test_impossible_sampling_settings_are_refused_by_their_key(change, message):
    with pytest.raises(UserError, match=message):
        Sampling(**change)
