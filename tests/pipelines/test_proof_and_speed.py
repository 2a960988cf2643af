"""The stages that prove and time a pair, on a tiny target: what they write, print and refuse."""

import json
from pathlib import Path

import pytest

from .conftest import write_model


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("draft"), layers=1, hidden=32)


@pytest.fixture
def certified(distill, draft):
    def run(*more: str) -> None:
        distill(
            "pipeline=certify", "draft=ready", f"draft.model.id={draft}", "certify.samples=8192",
            "certify.num_prompts=3", "certify.max_new_tokens=12", *more,
        )  # fmt: skip

    return run


def result(tmp_path: Path, stage: str, name: str):
    (path,) = (tmp_path / "outputs" / "artifacts" / stage).glob(f"*/{name}")
    return json.loads(path.read_text())


@pytest.mark.slow
def test_certificate_of_a_pair_passes_with_every_control_caught(
    certified, tmp_path, tmp_path_factory, capsys
):
    sharp = write_model(tmp_path_factory.mktemp("sharp"), spread=0.2)
    near = write_model(tmp_path_factory.mktemp("near"), spread=0.2, noise=0.03)
    certified(f"target.id={sharp}", f"draft.model.id={near}", "certify.max_new_tokens=32")
    printed = capsys.readouterr().out
    certificate = result(tmp_path, "certify", "certificate.json")
    assert certificate["passed"]
    assert len(certificate["controls"]) == 4  # one for each fault
    assert all(one["passed"] for one in [*certificate["checks"], *certificate["controls"]])
    assert certificate["pair"]["half"] == "bfloat16"
    assert "exact speculative decoding: certified" in printed
    assert "FAIL" not in printed


def test_failed_certificate_ends_with_status_one_also_when_found_again(
    certified, tmp_path, capsys, monkeypatch
):
    from distill.evaluate.exactness.certificate import Certificate, Check

    failed = Certificate([Check("a claim", False, {"statistic": float("inf")})])
    monkeypatch.setattr("distill.pipelines.certify.certify", lambda *_, **__: failed)
    for _ in range(2):
        with pytest.raises(SystemExit) as stopped:
            certified()
        assert stopped.value.code == 1
        assert "NOT CERTIFIED" in capsys.readouterr().out
    assert result(tmp_path, "certify", "certificate.json")["passed"] is False


def test_champion_of_the_own_training_is_certified(distill, tmp_path, monkeypatch):
    from distill.evaluate.exactness.certificate import Certificate

    monkeypatch.setattr("distill.pipelines.certify.certify", lambda *_, **__: Certificate())
    distill("pipeline=certify", "certify.num_prompts=2")
    trained = result(tmp_path, "judge", "manifest.json")["counts"]["draft_weights_sha256"]
    assert (
        result(tmp_path, "certify", "certificate.json")["pair"]["draft_weights_sha256"] == trained
    )


def test_benchmark_of_decoding(distill, draft, tmp_path, capsys):
    distill(
        "pipeline=benchmark", "benchmark.what=decoding", "draft=ready", f"draft.model.id={draft}",
        "benchmark.batch_sizes=[1,2]", "benchmark.num_draft_tokens=[1,2]",
        "benchmark.max_new_tokens=6", "benchmark.repetitions=1",
    )  # fmt: skip
    lines = result(tmp_path, "benchmark", "benchmark.json")["lines"]
    assert [(one["batch_size"], one["num_draft_tokens"]) for one in lines] == [
        (1, 1), (1, 2), (2, 1), (2, 2),
    ]  # fmt: skip
    assert [one["assisted"] is None for one in lines] == [False, False, True, True]
    assert all(one["engine_efficiency"] > 0 for one in lines)
    assert "efficiency" in capsys.readouterr().out


def test_probe_needs_no_data_and_no_budget(distill, tmp_path, capsys):
    distill(
        "pipeline=probe", "data=jsonl", "data.source.path=nowhere.jsonl", "budget.tokens=null",
        "probe.drafts=[{hidden_size:32,num_hidden_layers:1},{parameter_ratio:0.5}]",
        "probe.batch_sizes=[1,2]", "probe.context_lengths=[16]", "probe.num_draft_tokens=[1,2]",
        "probe.timings=2",
    )  # fmt: skip
    printed = capsys.readouterr().out
    found = result(tmp_path, "probe", "prospects.json")
    assert len(found) == 4
    assert {one["draft"] for one in found} >= {"1 × 32"}
    assert printed.count("at batch") == 2
    assert "On paper" in printed


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["pipeline=certify", "certify.samples=0"], "certify.samples=0"),
        (["pipeline=certify", "certify.num_prompts=500"], "data.evaluation_rows"),
        (["pipeline=benchmark", "benchmark.what=nothing"], "decoding"),
        (["pipeline=benchmark", "benchmark.batch_sizes=[]"], "benchmark.batch_sizes"),
        (["pipeline=benchmark", "benchmark.batch_sizes=[64]"], "data.evaluation_rows"),
        (
            ["pipeline=benchmark", "benchmark.what=signals", "benchmark.signals.encodings=1"],
            "benchmark.signals.encodings=1: give values from 2 up",
        ),
        (
            ["pipeline=benchmark", "benchmark.what=signals", "benchmark.signals.k=[8,0]"],
            "benchmark.signals.k=[8, 0]",
        ),
        (
            ["pipeline=benchmark", "benchmark.what=signals", "benchmark.signals.batches=0"],
            "benchmark.signals.batches=0",
        ),
        (["pipeline=probe", "probe.context_lengths=[4096]"], "the target holds 256"),
        (["pipeline=probe", "probe.context_lengths=[16]", "probe.drafts=[]"], "probe.drafts"),
        (["pipeline=probe", "probe.num_draft_tokens=[0]"], "probe.num_draft_tokens"),
        (["pipeline=probe", "probe.context_lengths=[16]", "probe.alphas=[1.5]"], "probe.alphas"),
    ],
)
def test_bad_input_is_one_line(distill, capsys, arguments, remedy):
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        distill(*arguments)
    assert stopped.value.code == 2
    printed = [line for line in capsys.readouterr().err.splitlines() if line.startswith("distill:")]
    assert len(printed) == 1
    assert remedy in printed[0]
