"""A job with stated sizes takes what this machine can do in time, and stays with it."""

import json

import pytest

from distill.evaluate.benchmark.stage_times import Rates
from distill.pipelines import plan, road
from tests.pipelines.conftest import write_model

SIZES = [
    "+plan.sizes.small={rows:6,learnt:400}",
    "+plan.sizes.medium={rows:12,learnt:800}",
    "+plan.sizes.large={rows:24,learnt:1600}",
    "data.train_rows=${of_size:rows}",
    "budget.tokens=${of_size:learnt}",
    "pipeline=prepare",
]
RATES = Rates(answered=1e3, read=1e3, learnt=20.0, step_seconds={1: 1e-3})
"""Learning takes nearly all: 20 s, 40 s, 80 s, and a little for validation."""


@pytest.fixture
def rates(monkeypatch):
    """What a measurement finds, and how often one was made."""

    class Measured:
        found = RATES
        times = 0

    def measure(job, sample, folder):
        Measured.times += 1
        return Measured.found

    monkeypatch.setattr(plan, "measure_rates", measure)
    return Measured


@pytest.fixture
def distill(distill, prompts, monkeypatch):
    """Up to the road: returns the job that would run; none where a stage is not reached."""
    jobs = []
    monkeypatch.setattr(road, "run", jobs.append)

    def run(*given):
        own = any(one.startswith("data=") for one in given)
        distill(*([] if own else ["data=jsonl", f"data.source.path={prompts}"]), *given)
        return jobs[-1].config if jobs else None

    return run


@pytest.fixture
def said(capsys):
    """The lines that the plan has said since the last time."""

    def lines():
        found = capsys.readouterr().err.splitlines()
        return [line.partition("] ")[2] for line in found if "] plan: " in line]

    return lines


def record(tmp_path):
    (path,) = (tmp_path / "outputs" / "plan").glob("*.json")
    return path


@pytest.mark.parametrize(("minutes", "rows"), [(1.0, 12), (2.0, 24), (0.1, 6)])
def test_the_size_that_ends_in_time_is_taken(distill, rates, said, minutes, rows):
    config = distill(*SIZES, f"plan.minutes={minutes}")
    assert (config.data.train_rows, config.budget.tokens) == (rows, 400 * rows // 6)
    lines = said()
    assert {line.split(":")[1] for line in lines} >= {" train", " measure"}
    late = "plan: none ends within plan.minutes=0.1: it goes on with small"
    assert (late in lines) == (minutes == 0.1)


def test_a_second_run_is_the_same_job_on_a_busier_machine(distill, rates, tmp_path, said):
    first = distill(*SIZES, "plan.minutes=1")
    rates.found = Rates(1.0, 1.0, 0.1, {1: 1.0})
    assert distill(*SIZES, "plan.minutes=1") == first
    other = distill(*SIZES, "plan.minutes=1", "evaluate.num_prompts=2", "seed=1")
    assert (other.plan.size, rates.times) == ("medium", 1)
    assert said()[-1] == f"plan: size medium, as recorded in {record(tmp_path)}"


def test_what_takes_another_time_is_measured_anew(distill, rates, tmp_path):
    distill(*SIZES, "plan.minutes=1")
    for change in ("plan.minutes=2", "draft.num_hidden_layers=2", "data.max_length=64"):
        distill(*SIZES, "plan.minutes=1", change)
    assert rates.times == 4


@pytest.mark.parametrize("text", ["", "{", "[]", '{"size": "vast"}', '{"size": ["small"]}', "{}"])
def test_a_damaged_record_is_said_and_made_again(distill, rates, tmp_path, said, text):
    distill(*SIZES, "plan.minutes=1")
    record(tmp_path).write_text(text)
    distill(*SIZES, "plan.minutes=1")
    assert len([line for line in said() if "is damaged" in line and "\n" not in line]) == 1
    assert rates.times == 2
    assert json.loads(record(tmp_path).read_text())["size"] == "medium"


def test_a_size_that_is_given_is_taken_unmeasured(distill, rates, tmp_path):
    assert distill(*SIZES, "plan.size=large").data.train_rows == 24
    assert rates.times == 0
    assert not (tmp_path / "outputs" / "plan").exists()


@pytest.mark.parametrize("given", [["pipeline=prepare"], [*SIZES, "pipeline=probe"]])
def test_a_job_without_sizes_or_data_measures_nothing(distill, rates, given):
    distill(*given)
    assert rates.times == 0


def test_what_the_command_line_sets_stands_whatever_the_size(distill, rates):
    config = distill(*SIZES, "data.train_rows=7", "plan.minutes=1")
    assert (config.plan.size, config.data.train_rows) == ("medium", 7)


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        (["plan.size=huge"], "small, medium, large"),
        (["data.train_rows=null"], "give plan.size=small or plan.size=medium"),
        (["budget.tokens=null"], "give plan.size=small"),
        (["data.on_policy=0.5"], "give plan.size=small"),
        (["data=self_prompted"], "give plan.size=small"),
        (["plan.minutes=0"], "plan.minutes=0"),
        (["+plan.sizes.b={rows:1}"], "the same names"),
        (["data.train_rows=${of_size:row}"], "row"),
    ],
)
def test_what_cannot_be_foretold_is_one_line(distill, rates, capsys, changes, remedy):
    with pytest.raises(SystemExit) as stopped:
        distill(*SIZES, *changes)
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert stopped.value.code == 2
    assert remedy in line


def test_the_size_is_not_known_while_composing(distill, rates, capsys):
    distill(*SIZES, "--cfg", "job", "--resolve")
    assert "train_rows: 6" in capsys.readouterr().out
    assert rates.times == 0


KINDS = {
    "code, pruned, hidden": ["data=code", "data.continued=0.5", "draft=pruned", "signal=hidden"],
    "prompts, scratch, live": ["draft=scratch"],
    "svd, sampled": ["data=code", "draft=svd", "signal=sampled", "objective=forward_kl"],
    "head": ["target.id={deep}", "draft=eagle3", "draft.vocabulary=40", "signal=hidden"],
    "head, live": ["target.id={deep}", "draft=eagle3", "draft.vocabulary=null"],
    "pretrained": [
        "data=code",
        "draft=pretrained",
        "draft.model.source=folder",
        "draft.model.id={target}",
        "data.packing=true",
    ],
    "ready": ["data=code", "draft=ready", "draft.model.id={target}"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_job_is_measured(distill, kind, target, tmp_path, monkeypatch):
    """Every rate that the job's stages need; nothing is left but the record."""
    deep = write_model(tmp_path / "deep", layers=6)
    found = []
    measure = plan.measure_rates
    monkeypatch.setattr(
        plan, "measure_rates", lambda *given: found.append(measure(*given)) or found[-1]
    )
    settings = [text.format(target=target, deep=deep) for text in KINDS[kind]]
    distill(*SIZES, *settings, "evaluate.batch_sizes=[1,2]")
    (rates,) = found
    assert min(rates.answered, rates.read, rates.learnt, *rates.step_seconds.values()) > 0
    assert set(rates.step_seconds) == {1, 2}
    stages = set(next(iter(json.loads(record(tmp_path).read_text())["expected_minutes"].values())))
    wanted = {"measure"} if kind == "ready" else {"train", "measure"}
    wanted |= {"cache"} if "signal=hidden" in settings or "signal=sampled" in settings else set()
    answers = "data=code" not in settings or "data.continued=0.5" in settings
    wanted |= {"generate"} if answers else set()
    assert stages == wanted
    left = {path.name.split(".")[-1] for path in (tmp_path / "outputs" / "plan").iterdir()}
    assert left <= {"json", "lock"}
