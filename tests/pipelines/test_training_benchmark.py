"""`what=training` on a tiny target: real runs of the arms, in processes of their own."""

import json
import os

import pytest

SIZES = ("benchmark.warmup=1", "benchmark.steps=2", "benchmark.repetitions=1", "data.max_length=64")


@pytest.mark.slow
def test_both_trainers_do_the_same_work(distill, tmp_path, capsys) -> None:
    """TRL's arm runs where DISTILL_TRL_PYTHON names an interpreter that has TRL."""
    python = os.environ.get("DISTILL_TRL_PYTHON", "null")
    distill(
        "pipeline=benchmark", "benchmark.what=training", "draft=scratch", *SIZES,
        f"benchmark.trl_python={python}",
    )  # fmt: skip
    assert "Training: median" in capsys.readouterr().out
    (path,) = (tmp_path / "outputs" / "artifacts" / "benchmark").glob("*/benchmark.json")
    found = json.loads(path.read_text())
    assert {"live", "hidden", "top_k", "sampled"} <= found["arms"].keys()
    for arm in found["arms"].values():
        assert len(arm["rates"]) == len(arm["peak_bytes"]) == 2
        assert min(arm["rates"]) > 0
        assert min(arm["peak_bytes"]) > 100e6
    assert not (path.parent / "work").exists()
    if python == "null":
        assert found["same_update"] is None
    else:
        assert found["same_update"] > 0.999


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ("benchmark.steps=0", "benchmark.steps"),
        ("benchmark.trl_python=/no/such/python", "trl_python"),
        ("benchmark.cached=[logits]", "hidden, top_k, sampled"),
        ("benchmark.what=nothing", "decoding, training"),
    ],
)
def test_what_cannot_be_measured(distill, capsys, change, remedy) -> None:
    with pytest.raises(SystemExit):
        distill("pipeline=benchmark", "benchmark.what=training", "draft=scratch", change)
    assert remedy in capsys.readouterr().err


def test_rows_too_short_to_fill_a_batch(distill, capsys, prompts) -> None:
    with pytest.raises(SystemExit):
        distill(
            "pipeline=benchmark", "benchmark.what=training", "draft=scratch",
            "data=jsonl", f"data.source.path={prompts}",
        )  # fmt: skip
    assert "data.max_length" in capsys.readouterr().err
