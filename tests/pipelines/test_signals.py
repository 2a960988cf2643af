"""A job with a cached signal: the same training, without the target."""

import dataclasses
import gc
import inspect
import json
import re
import weakref
from functools import partial
from pathlib import Path

import pytest

from distill.pipelines.job import Job, Target


@pytest.fixture
def last_metrics(tmp_path):
    def read() -> list[dict]:
        found = (tmp_path / "outputs" / "artifacts" / "train").glob("*/candidates/*/metrics.json")
        return sorted((json.loads(path.read_text()) for path in found), key=lambda m: m["tokens"])

    return read


@pytest.fixture
def loads(monkeypatch):
    """Which stage loaded the target, in order."""
    seen, load = [], Target.load

    def counted(self, *dtype):
        module = Path(inspect.currentframe().f_back.f_code.co_filename)
        seen.append(module.stem)
        return load(self, *dtype)

    monkeypatch.setattr(Target, "load", counted)
    return seen


def test_hidden_signal_trains_like_the_live_one_without_the_target(distill, last_metrics, loads):
    distill("pipeline=train", "draft=scratch")
    distill("pipeline=train", "draft=scratch", "signal=hidden")
    assert loads == ["train", "cache"]
    first, second = last_metrics()[-2:]
    assert first["tokens"] == second["tokens"]
    assert first["kl"] == pytest.approx(second["kl"], rel=1e-4)
    assert first["alpha"] == pytest.approx(second["alpha"], rel=1e-4)

    distill("pipeline=train", "draft=scratch", "signal=hidden")  # up to date
    assert loads == ["train", "cache"]


@pytest.mark.parametrize("signal", ["top_k", "sampled"])
def test_sparse_signals_train(distill, last_metrics, loads, signal):
    distill(
        "pipeline=train", "draft=scratch", "objective=forward_kl",
        f"signal={signal}", "signal.shard_tokens=100",
    )  # fmt: skip
    first, last = last_metrics()
    assert last["kl"] < first["kl"]
    assert loads == ["cache"]


def test_a_draft_made_from_the_target_still_gets_it(distill, last_metrics, loads):
    distill("pipeline=train", "signal=top_k", "draft.init=svd")
    assert loads == ["cache", "train"]
    assert last_metrics()


def test_the_target_does_not_outlive_the_training(distill, monkeypatch):
    loaded, load = [], Target.load

    def watched(self):
        target = load(self)
        loaded.append(weakref.ref(target))
        return target

    monkeypatch.setattr(Target, "load", watched)
    gc.disable()  # what frees it is no accident
    try:
        distill("pipeline=train", "trainer.decode_every=0.5", "trainer.decode_num_prompts=2")
    finally:
        gc.enable()
    assert [target() for target in loaded] == [None]


@pytest.mark.slow
def test_a_cached_signal_belongs_to_its_target_data_and_codec(distill, monkeypatch):
    """What its fingerprint left out would serve the signal of something else."""
    made, make, identity = [], Job.make, Target.identity.func

    def noted(self, stage, settings, inputs, produce, **others):
        if stage == "cache":
            made.append((settings, inputs))
            return None
        return make(self, stage, settings, inputs, produce, **others)

    monkeypatch.setattr(Job, "make", noted)
    asked = ("pipeline=cache", "objective=forward_kl", "signal=sampled", "signal.draws=8")
    for change in ((), ("signal.draws=9",), ("target.dtype=bfloat16",), ("seed=1",)):
        distill(*asked, *change)
    for name in ("sha256", "tokenizer_sha256", "template_sha256"):
        other = partial(replaced, identity, name)
        monkeypatch.setattr(Target, "identity", property(other))
        distill(*asked)
    (first, corpora), *others = made
    assert len(others) == 6
    assert all(settings != first for settings, _ in others)
    monkeypatch.setattr(Target, "identity", property(identity))
    distill(*asked, "data.train_rows=23")
    ((corpus,), (other,)) = corpora, made[-1][1]
    assert other.fingerprint != corpus.fingerprint


def replaced(identity, name, target):
    """The same target but for one of its hashes."""
    return dataclasses.replace(identity(target), **{name: "another"})


def test_codecs_are_compared_before_one_is_chosen(distill, tmp_path, capsys):
    distill(
        "pipeline=benchmark", "benchmark.what=signals", "draft=scratch", "objective=forward_kl",
        "benchmark.signals.k=[2,258]", "benchmark.signals.draws=[4]",
        "benchmark.signals.batches=2", "benchmark.signals.encodings=2",
    )  # fmt: skip
    (path,) = (tmp_path / "outputs" / "artifacts" / "benchmark").glob("*/benchmark.json")
    found = {one["codec"]: one for one in json.loads(path.read_text())["lines"]}
    assert set(found) == {"hidden", "top_k 2", "top_k 258", "sampled 4"}
    assert found["hidden"]["bytes_per_token"] == 4 * 64
    assert found["hidden"]["angle"] < 0.1 < found["top_k 2"]["angle"]
    assert found["top_k 258"]["norm_ratio"] == pytest.approx(1.0, abs=0.01)
    assert found["sampled 4"]["noise"] > found["top_k 2"]["noise"]
    printed = capsys.readouterr()
    assert "bytes/token" in printed.out
    assert "signals: sampled 4, encoding 2 of 2" in printed.out + printed.err


def test_a_codec_that_the_objective_cannot_take_is_left_out(distill, tmp_path, capsys):
    distill(
        "pipeline=benchmark", "benchmark.what=signals", "draft=scratch", "objective=acceptance",
        "benchmark.signals.k=[2]",
        "benchmark.signals.draws=[4,8]", "benchmark.signals.batches=1",
    )  # fmt: skip
    (path,) = (tmp_path / "outputs" / "artifacts" / "benchmark").glob("*/benchmark.json")
    found = json.loads(path.read_text())["lines"]
    assert [one["codec"] for one in found] == ["hidden", "top_k 2"]
    printed = capsys.readouterr()
    (said,) = {*re.findall("signals: (.*) left out: (.*) in the", printed.out + printed.err)}
    assert said == ("sampled 4, sampled 8", "acceptance is not linear")


def test_an_objective_that_suits_no_codec_is_refused_at_once(distill, target, tmp_path, capsys):
    ready = ("draft=ready", f"draft.model.id={target}")
    with pytest.raises(SystemExit):
        distill("pipeline=benchmark", "benchmark.what=signals", *ready, "objective.temperature=0")
    assert "temperature" in capsys.readouterr().err
    assert not (tmp_path / "outputs" / "artifacts").exists()
