"""`data.on_policy` from the command line to the window that is trained on."""

import pytest

from distill.training.on_policy import OnPolicy
from tests.pipelines.conftest import write_model


@pytest.mark.parametrize("by", ["draft", "pair"])
def test_windows_are_answered_by_who_is_asked(distill, monkeypatch, by):
    seen = []
    answer = OnPolicy.window

    def recorded(self, draft, window, number):
        seen.append((self.share, self.prompt_tokens, self.eos_token_ids, self.target is not None))
        return answer(self, draft, window, number)

    monkeypatch.setattr(OnPolicy, "window", recorded)
    distill(
        "pipeline=train", "draft=scratch", "data.on_policy=0.5", f"data.on_policy_by={by}",
        "budget.tokens=200",
    )  # fmt: skip
    assert set(seen) == {(0.5, 16, (257,), by == "pair")}


@pytest.mark.parametrize("by", ["draft", "pair"])
def test_a_draft_from_a_folder_is_trained_on_what_it_answered(distill, tmp_path, by):
    """Its weights are moved by the engine, in inference mode, and then learn."""
    draft = write_model(tmp_path / "draft", layers=1, hidden=32)
    distill(
        "pipeline=train", "draft=pretrained", "draft.model.source=folder",
        f"draft.model.id={draft}", "draft.hidden_size=null", "draft.num_hidden_layers=null",
        "data.on_policy=0.5", f"data.on_policy_by={by}", "budget.tokens=200",
    )  # fmt: skip
    assert list((tmp_path / "outputs").glob("artifacts/train/*/candidates/tokens-*/*.safetensors"))
