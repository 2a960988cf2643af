"""The evaluation stage on tiny models: its grid, its prompts, its files, its ranks."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from distill.evaluate.outcome import FILE
from distill.evaluate.screening import held_out_scores

from .conftest import write_model

CASES = [
    {"id": "talk", "domain": "chat", "turns": ["hello there", "and again?"]},
    {"id": "long", "domain": "chat", "prompt": "x" * 400},
    *({"id": f"m{i}", "domain": "math", "prompt": f"what is {i} + {i}?"} for i in range(4)),
    *(
        {"id": f"c{i}", "domain": "code", "prompt": f"def f{i}(x):\n", "format": "completion"}
        for i in range(4)
    ),
]  # fmt: skip


@pytest.fixture
def cases(tmp_path: Path) -> str:
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in CASES))
    return f"evaluate.prompts={path}"


@pytest.fixture(scope="session")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("drafts")
    return [write_model(root / f"d{i}", layers=1, hidden=32) for i in range(3)]


@pytest.fixture
def evaluated(distill, tmp_path, drafts):
    def run(*arguments: str, count: int = 1) -> tuple[dict, pd.DataFrame]:
        named = ",".join(map(str, drafts[:count]))
        distill("pipeline=evaluate", f"evaluate.candidates=[{named}]", *arguments)
        return read(tmp_path / "outputs")

    return run


def read(output: Path) -> tuple[dict, pd.DataFrame]:
    (path,) = output.glob(f"artifacts/judge/*/{FILE}")
    found = json.loads(path.read_text())
    return found, pd.read_parquet(path.with_name("measurements.parquet"))


def test_grid_of_loads_over_prompts_of_a_file(evaluated, cases, capsys):
    found, rows = evaluated(
        cases,
        "evaluate.samplings=[{temperature:1},{temperature:0}]",
        "evaluate.batch_sizes=[1,3]",
        "evaluate.context_edges=[16,64]",
        "evaluate.num_prompts=9",
        "+evaluate.floors.code=0.0001",
    )
    loads = [(load["sampling"], load["batch_size"]) for load in found["loads"]]
    assert loads == [("T=1", 1), ("T=1", 3), ("greedy", 1), ("greedy", 3)]
    assert found["verdict"] == found["loads"][0]["verdict"]
    assert found["prompts"] == {
        "conversations": 9, "turns": 10, "too_long": 1, "unusable": 0,
        "domains": {"chat": 1, "code": 4, "math": 4},
    }  # fmt: skip
    assert {part["name"] for part in found["domains"]} == {"chat", "code", "math"}
    assert [floor["domain"] for floor in found["loads"][0]["floors"]] == ["code"]
    assert [(line["batch_size"], line["num_draft_tokens"]) for line in found["calibration"]] == [
        (1, 1), (1, 2), (3, 1), (3, 2), (1, 1), (1, 2), (3, 1), (3, 2),
    ]  # fmt: skip
    each = rows.groupby(["sampling", "batch_size", "candidate", "num_draft_tokens", "repetition"])
    assert each.size().groupby("batch_size").agg(set).to_dict() == {1: {10}, 3: {9}}
    assert set(rows["bucket"]) == {"≤16", "17–64", ">64"}
    assert capsys.readouterr().out.count("verdict:") == 4


def test_later_turns_hold_the_targets_own_answer_and_raw_rows_stay_raw(evaluated, cases):
    _, rows = evaluated(cases, "evaluate.num_prompts=9")
    tokens = rows.groupby(["prompt_id", "turn"])["prompt_tokens"].first()
    special = 3  # tokens of two turns' begin and one's end; every other byte is a token
    opening = len("user\nhello there\nassistant\n") + special
    assert tokens["talk", 0] == opening
    question = len("user\nand again?\nassistant\n") + special
    answer = tokens["talk", 1] - opening - question - len(["<|im_end|>", "\n"])
    assert 0 <= answer <= 8 * len("\N{REPLACEMENT CHARACTER}".encode())  # random bytes
    assert tokens["c0", 0] == len("def f0(x):\n")


def test_follow_ups_of_held_out_data_are_decoded(evaluated, tmp_path):
    rows = [{"id": f"t{i}", "turns": [f"ask {i}", "more"]} for i in range(40)]
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, _ = evaluated("data=jsonl", f"data.source.path={path}")
    assert (found["prompts"]["conversations"], found["prompts"]["turns"]) == (3, 6)
    assert not (tmp_path / "outputs/artifacts/generate").exists()  # there is nothing to train


def test_only_some_domains(evaluated, cases):
    found, rows = evaluated(cases, "evaluate.domains=[math]", "evaluate.num_prompts=2")
    assert set(rows["domain"]) == {"math"}
    assert found["prompts"]["conversations"] == 2


def test_proxies_over_three_candidates(evaluated, cases):
    found, _ = evaluated(cases, count=3)
    assert len(found["proxies"]["points"]) == 3
    assert len(found["proxies"]["correlations"]) == 6
    assert [one["decoded"] for one in found["candidates"]] == [True] * 3


@pytest.mark.parametrize(("asked", "taken"), [(0.5, 0.5), (0, 1.0)])
def test_held_out_rows_are_read_at_the_first_loads_temperature(
    evaluated, cases, monkeypatch, asked, taken
):
    seen = []

    def recorded(*arguments):
        seen.append(arguments[-1])
        return held_out_scores(*arguments)

    monkeypatch.setattr("distill.pipelines.measure.held_out_scores", recorded)
    samplings = f"evaluate.samplings=[{{temperature:{asked}}},{{temperature:2}}]"
    evaluated(cases, samplings, "evaluate.num_prompts=3", count=3)
    assert seen == [taken]


def test_own_checkpoints_are_not_read_again(distill, tmp_path, monkeypatch):
    def fail(*_args, **_kwargs):
        raise AssertionError("the held-out rows were read again")

    monkeypatch.setattr("distill.pipelines.measure.held_out_scores", fail)
    distill("pipeline=evaluate", "trainer.checkpoints=3", "evaluate.max_candidates=1")
    found, _ = read(tmp_path / "outputs")
    assert [one["decoded"] for one in found["candidates"]] == [False, False, True]
    assert all(0 < one["alpha"] < 1 for one in found["candidates"])
    (training,) = (tmp_path / "outputs/artifacts/train").glob("*/candidates")
    assert found["candidates"][-1]["tokens"] == int(found["draft"].split("-")[1])

    # the folder of the run, or of all runs, stands for its checkpoints
    for place in (training.parent, training.parent.parent):
        distill("pipeline=evaluate", f"evaluate.candidates=[{place}]", "evaluate.max_candidates=1")


def test_a_draft_that_was_moved_is_not_measured_again(distill, drafts, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    shutil.copytree(drafts[0], here / "d")
    distill("pipeline=evaluate", f"evaluate.candidates=[{here / 'd'}]")
    here.rename(there)
    distill("pipeline=register", f"evaluate.candidates=[{there / 'd'}]")
    assert len(list((tmp_path / "outputs").glob("artifacts/judge/*/manifest.json"))) == 1


def test_other_end_tokens_are_another_evaluation(distill, target, drafts, tmp_path):
    own = tmp_path / "own"
    shutil.copytree(target, own)
    for eos in ([257], [65, 257]):
        (own / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
        distill("pipeline=evaluate", f"target.id={own}", f"evaluate.candidates=[{drafts[0]}]")
    assert len(list((tmp_path / "outputs").glob("artifacts/judge/*/manifest.json"))) == 2


def made(tmp_path, stage: str) -> int:
    return len(list((tmp_path / "outputs").glob(f"artifacts/{stage}/*/manifest.json")))


BARS = (["evaluate.margin=5"], ["+evaluate.floors.math=9"])


def test_another_bar_judges_the_same_rows(distill, cases, drafts, tmp_path, monkeypatch):
    named = ["pipeline=evaluate", cases, f"evaluate.candidates=[{drafts[0]}]"]
    distill(*named)

    def fail(*_args, **_kwargs):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", fail)
    for bar in BARS:
        distill(*named, *bar)
    assert (made(tmp_path, "measure"), made(tmp_path, "judge")) == (1, 3)
    files = (tmp_path / "outputs").glob(f"artifacts/judge/*/{FILE}")
    floors = [json.loads(path.read_text())["loads"][0]["floors"] for path in files]
    assert sorted(len(found) for found in floors) == [0, 0, 1]


def test_a_floor_under_which_nothing_was_decoded(distill, cases, drafts, capsys):
    named = ["pipeline=evaluate", cases, f"evaluate.candidates=[{drafts[0]}]"]
    few = [*named, "evaluate.domains=[chat,math]", "evaluate.num_prompts=1"]
    distill(*few)
    with pytest.raises(SystemExit):
        distill(*few, "+evaluate.floors.math=1")
    assert "none of its prompts is decoded" in capsys.readouterr().err


def test_force_decodes_again(distill, drafts, tmp_path):
    named = ["pipeline=evaluate", f"evaluate.candidates=[{drafts[0]}]"]
    distill(*named)
    (path,) = (tmp_path / "outputs").glob("artifacts/measure/*/measurements.parquet")
    before = path.stat().st_mtime_ns
    distill(*named)
    assert path.stat().st_mtime_ns == before
    distill(*named, "force=true")
    assert path.stat().st_mtime_ns > before


REFUSED = [
    (["evaluate.num_draft_tokens=[]"], "evaluate.num_draft_tokens"),
    (["evaluate.batch_sizes=[]"], "evaluate.batch_sizes"),
    (["evaluate.batch_sizes=[2,2]"], "each once"),
    (["evaluate.batch_sizes=[0]"], "evaluate.batch_sizes"),
    (["evaluate.batch_sizes=[1,4]"], "batch_sizes has 4, and 3 prompts are decoded"),
    (["evaluate.num_prompts=99", "evaluate.batch_sizes=[11]"], "and 10 prompts"),
    (
        ["evaluate.prompts=null", "evaluate.num_prompts=9", "evaluate.batch_sizes=[5]"],
        "and 4 prompts",
    ),
    (["evaluate.context_edges=[512,256]"], "must rise"),
    (["evaluate.samplings=[]"], "evaluate.samplings"),
    (["evaluate.samplings=[{temperature:0},{temperature:0}]"], "each once"),
    (["evaluate.samplings=[{temperature:-1}]"], "temperature"),
    (["evaluate.domains=[poetry]"], "no prompt is of domain 'poetry'"),
    (["evaluate.domains=[]"], "null takes those of all"),
    (["+evaluate.floors.poetry=1"], "chat, code, math"),
    (["evaluate.domains=[math]", "+evaluate.floors.code=1"], "evaluate.domains"),
    (["evaluate.prompts=nowhere.jsonl"], "does not exist"),
]


@pytest.mark.parametrize(("arguments", "remedy"), REFUSED)
def test_refused_before_any_work(distill, cases, target, capsys, monkeypatch, arguments, remedy):
    def fail(*_args, **_kwargs):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", fail)
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        distill("pipeline=evaluate", cases, *arguments)
    assert stopped.value.code == 2
    (printed,) = capsys.readouterr().err.splitlines()
    assert remedy in printed


def test_named_candidate_of_another_tokenizer(distill, tmp_path, capsys):
    other = write_model(tmp_path / "other", swap=True)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        distill("pipeline=evaluate", f"evaluate.candidates=[{other}]")
    assert "differs from the target's first at id 40" in capsys.readouterr().err
    assert not (tmp_path / "outputs" / "artifacts").exists()  # before any work


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["evaluate.domains=[chat]", "evaluate.num_prompts=1"], "no prompts are left"),
        (["+evaluate.floors.chat=1"], "none of its prompts is decoded"),
        (["evaluate.batch_sizes=[3]"], "and 2 prompts are decoded"),
    ],
)
def test_no_prompt_left(evaluated, tmp_path, capsys, monkeypatch, arguments, remedy):
    monkeypatch.setattr("distill.pipelines.job.Target.load", None)  # too late
    path = tmp_path / "few.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in CASES[1:4]))
    with pytest.raises(SystemExit):
        evaluated(f"evaluate.prompts={path}", *arguments)
    assert remedy in capsys.readouterr().err


@pytest.mark.slow
def test_two_ranks_measure_each_prompt_once(target, drafts, cases, tmp_path):
    command = [
        "-m", "distill", "pipeline=evaluate", "target=folder", f"target.id={target}",
        "draft=ready", f"draft.model.id={drafts[0]}", "target.dtype=float32", "trainer=cpu",
        f"paths.cache={tmp_path / 'cache'}", "data.train_rows=8", "data.validation_rows=4",
        "data.evaluation_rows=4", "data.max_length=96", "data.prompt_tokens=16", cases,
        "evaluate.num_prompts=9", "evaluate.max_new_tokens=8",
        "evaluate.num_draft_tokens=[1,2]", "evaluate.batch_sizes=[1,2]",
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=29731"]
    for name, launcher in (("one", []), ("two", torchrun)):
        launched = [part for part in command if launcher == [] or part != "-m"]
        if launcher:
            launched = ["-m", *launched]
        output = subprocess.run(
            [sys.executable, *launcher, *launched, f"paths.output={tmp_path / name}"],
            env=environment, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert output.returncode == 0, output.stderr
        assert output.stdout.count("verdict:") == 2  # rank zero prints
    keys = ["sampling", "batch_size", "prompt_id", "turn", "num_draft_tokens", "repetition"]
    plain = []
    for name in ("one", "two"):
        _, rows = read(tmp_path / name)
        assert not rows.duplicated(["candidate", *keys]).any()
        only = rows[rows["candidate"] == "plain"].sort_values(keys)
        plain.append(only[[*keys, "committed", "target_passes"]].reset_index(drop=True))
    pd.testing.assert_frame_equal(*plain)
