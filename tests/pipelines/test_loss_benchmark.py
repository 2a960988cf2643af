"""`what=loss`: every divergence, without a model."""

import json

import pytest

from distill.losses.mixture import BY_NAME


def test_every_divergence_is_timed_for_this_pair_and_for_others(distill, tmp_path, capsys) -> None:
    benchmark = (
        "pipeline=benchmark",
        "benchmark.what=loss",
        "draft=scratch",
        "benchmark.repetitions=1",
    )
    distill(*benchmark, "trainer.tokens_per_batch=8")
    distill(
        *benchmark, "trainer.tokens_per_batch=8",
        "benchmark.heads=[{vocabulary_size:40,width:8,target_width:16}]",
    )  # fmt: skip
    assert "Fused loss" in capsys.readouterr().out
    paths = (tmp_path / "outputs" / "artifacts" / "benchmark").glob("*/benchmark.json")
    found = [json.loads(path.read_text()) for path in paths]
    assert len(found) == 2
    assert {line["divergence"] for line in found[0]["lines"]} == {*BY_NAME}
    assert {"vocabulary_size": 40, "width": 8, "target_width": 16} in [
        one for each in found for one in each["heads"]
    ]
    for line in found[0]["lines"]:
        assert len(line["shares"]) == 2
        assert min(line["shares"]) > 0


def test_a_given_dtype_is_the_only_one(distill, tmp_path) -> None:
    distill(
        "pipeline=benchmark", "benchmark.what=loss", "draft=scratch", "benchmark.repetitions=1",
        "trainer.tokens_per_batch=8", "target.dtype=bfloat16",
    )  # fmt: skip
    (path,) = (tmp_path / "outputs" / "artifacts" / "benchmark").glob("*/benchmark.json")
    lines = json.loads(path.read_text())["lines"]
    assert {line["compute"] for line in lines} == {"bfloat16"}


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ("benchmark.repetitions=0", "benchmark.repetitions"),
        ("benchmark.heads=[{vocabulary_size:0,width:8,target_width:8}]", "vocabulary_size"),
        ("benchmark.heads=[{width:8}]", "vocabulary_size"),
    ],
)
def test_sizes_that_cannot_be(distill, capsys, change, remedy) -> None:
    with pytest.raises(SystemExit):
        distill("pipeline=benchmark", "benchmark.what=loss", "draft=scratch", change)
    assert remedy in capsys.readouterr().err
