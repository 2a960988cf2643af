"""`trainer.decode_every` from the command line: its numbers, and what it refuses."""

import json

import pytest


def test_candidates_carry_what_was_decoded(distill, tmp_path):
    distill(
        "pipeline=train", "trainer.decode_every=0.5", "trainer.decode_num_prompts=2",
        "trainer.decode_max_new_tokens=8",
    )  # fmt: skip
    found = sorted((tmp_path / "outputs").glob("artifacts/train/*/candidates/*/metrics.json"))
    assert len(found) == 2
    for path in found:
        decoding = json.loads(path.read_text())["decoding"]
        assert 0 < decoding["alpha"] <= 1
        assert 1 <= decoding["tokens_per_pass"] <= 4


def test_more_prompts_than_there_are(distill, capsys):
    with pytest.raises(SystemExit) as stopped:
        distill("pipeline=train", "trainer.decode_every=0.5", "trainer.decode_num_prompts=50")
    assert stopped.value.code == 2
    assert "raise data.validation_rows" in capsys.readouterr().err.splitlines()[-1]
