"""The whole road on a tiny target: every stage, the registry, the export, the second run."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from distill.data.sources import jsonl
from distill.pipelines import job as jobs
from distill.pipelines import road

SUMMARY_KEYS = {
    "target", "draft", "parameter_ratio", "alpha", "alpha_low", "alpha_high", "alpha_empirical",
    "tokens_per_pass", "cost_ratio", "num_draft_tokens", "speedup", "speedup_low", "speedup_high",
    "predicted_speedup", "engine_efficiency", "verdict", "train_tokens", "train_tokens_per_second",
    "wall_seconds", "model_uri", "export_path",
}  # fmt: skip


def read_summary(printed: str) -> dict:
    line = printed.strip().splitlines()[-1]
    assert line.startswith("summary: ")
    return json.loads(Path(line.removeprefix("summary: ")).read_text())


@pytest.fixture
def manifests(tmp_path):
    def stages() -> dict[str, int]:
        found: dict[str, int] = {}
        for path in (tmp_path / "outputs" / "artifacts").glob("*/*/manifest.json"):
            found[path.parent.parent.name] = found.get(path.parent.parent.name, 0) + 1
        return found

    return stages


def test_code_job_from_nothing_and_again(distill, capsys, manifests, tmp_path):
    distill("evaluate.num_prompts=9")
    first = read_summary(capsys.readouterr().out)
    assert first.keys() >= SUMMARY_KEYS
    nested = {key for key, value in first.items() if isinstance(value, dict | list)}
    assert nested == {"loads", "domains", "calibration"}
    assert (len(first["loads"]), len(first["calibration"])) == (1, 2)
    assert first["train_tokens"] >= 600
    (training,) = (tmp_path / "outputs/artifacts/train").glob("*/manifest.json")
    named = json.loads(training.read_text())["counts"]["candidates"]
    assert named == sorted(p.name for p in (training.parent / "candidates").iterdir())
    assert 0 <= first["alpha_low"] <= first["alpha"] <= first["alpha_high"] <= 1
    card = (Path(first["export_path"]) / "README.md").read_text()
    assert "- prompts: 4\n" in card  # as many as the data has
    exported = AutoModelForCausalLM.from_pretrained(first["export_path"], dtype=torch.float32)
    assert exported.config.hidden_size == 32
    once = dict.fromkeys(("prepare", "train", "measure", "judge", "export"), 1)
    assert manifests() == once

    distill("evaluate.num_prompts=9")
    again = read_summary(capsys.readouterr().out)
    assert manifests() == once
    same = first.keys() - {"wall_seconds"}
    assert {key: again[key] for key in same} == {key: first[key] for key in same}


def test_chat_job_generates_answers_and_changed_input_redoes_the_rest(
    distill, prompts, manifests, monkeypatch
):
    """And each stage that did something ends by returning its memory."""
    returned = []
    monkeypatch.setattr(jobs, "return_freed_memory", lambda: returned.append(1))
    arguments = ["data=jsonl", f"data.source.path={prompts}"]
    distill(*arguments, "pipeline=train")
    assert manifests() == {"prepare": 1, "generate": 1, "train": 1}
    distill(*arguments, "pipeline=train", "generate.temperature=0.5")
    assert manifests() == {"prepare": 1, "generate": 2, "train": 2}
    assert len(returned) == 3 + 2


def test_what_was_moved_is_not_done_again(distill, prompts, tmp_path, manifests):
    from .conftest import write_model

    start, there = write_model(tmp_path / "start", layers=1, hidden=32), tmp_path / "there"
    there.mkdir()
    for data, draft in ((prompts, start), (there / "rows.jsonl", there / "start")):
        if not data.exists():
            prompts.rename(data)
            start.rename(draft)
        pretrained = ["draft=pretrained", "draft.model.source=folder", f"draft.model.id={draft}"]
        distill("pipeline=train", "data=jsonl", f"data.source.path={data}", *pretrained)
    assert manifests() == {"prepare": 1, "generate": 1, "train": 1}


def test_a_whole_training_keeps_no_checkpoints_to_go_on_from(distill, tmp_path):
    distill("pipeline=train")
    (training,) = (tmp_path / "outputs/artifacts/train").glob("*/manifest.json")
    assert sorted(path.name for path in training.parent.iterdir()) == ["candidates", training.name]


def test_a_full_job_with_a_cached_signal_reads_the_data_file_once(
    distill, prompts, monkeypatch, tmp_path
):
    """The parser is asked once; the road resolves each stage once, whoever reads it."""
    parsed, resolved = [], []
    read = jsonl.read_records
    monkeypatch.setattr(
        jsonl, "read_records", lambda path, *a: parsed.append(path) or read(path, *a)
    )
    for name, stage in road.STAGES.items():
        monkeypatch.setitem(road.STAGES, name, replace(stage, run=noted(resolved, name, stage.run)))
    distill("data=jsonl", f"data.source.path={prompts}", "signal=hidden")
    assert parsed == [prompts]
    assert resolved == [
        "prepare", "generate", "cache", "train", "measure", "judge", "register", "export",
    ]  # fmt: skip


def noted(calls, name, run):
    def call(*arguments):
        calls.append(name)
        return run(*arguments)

    return call


def test_pretrained_draft_that_changed_is_trained_anew(distill, tmp_path, manifests):
    from .conftest import write_model

    start = tmp_path / "start"
    pretrained = ["draft=pretrained", "draft.model.source=folder", f"draft.model.id={start}"]
    for noise in (0.0, 0.1):
        write_model(start, layers=1, hidden=32, noise=noise)
        distill("pipeline=train", *pretrained)
    distill("pipeline=train", *pretrained)
    assert manifests() == {"prepare": 1, "train": 2}


def test_stages_before_training_need_no_budget(distill, prompts, manifests, capsys):
    jsonl = ["data=jsonl", f"data.source.path={prompts}", "budget.tokens=null"]
    distill("pipeline=prepare", *jsonl)
    assert manifests() == {"prepare": 1}
    with pytest.raises(SystemExit):
        distill("pipeline=train", *jsonl)
    assert "set budget.tokens" in capsys.readouterr().err.splitlines()[-1]


def test_registered_model_is_a_target_of_evaluation(distill, tmp_path, capsys):
    distill("pipeline=register")
    capsys.readouterr()
    uri = f"sqlite:///{tmp_path / 'outputs' / 'mlflow.db'}"
    distill(
        "pipeline=evaluate",
        "evaluate.candidates=[models:/target0-draft@champion]",
        f"tracking.uri={uri}",
    )
    assert "verdict:" in capsys.readouterr().out


def test_registered_draft_is_found_in_the_jobs_own_store(distill, tmp_path, capsys):
    import mlflow

    distill("pipeline=register")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'elsewhere.db'}")  # as in a new process
    capsys.readouterr()
    registered = ["draft.model.source=mlflow", "draft.model.id=models:/target0-draft@champion"]
    distill("pipeline=probe", "probe.measure=false", "draft=ready", *registered)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'elsewhere.db'}")
    distill("pipeline=evaluate", "draft=ready", *registered)
    assert "verdict:" in capsys.readouterr().out


def test_the_target_as_its_own_draft_is_always_accepted(distill, target, tmp_path):
    distill("pipeline=evaluate", "draft=ready", f"draft.model.id={target}")
    manifest = next((tmp_path / "outputs" / "artifacts" / "judge").glob("*/manifest.json"))
    counts = json.loads(manifest.read_text())["counts"]
    assert counts["alpha"] == pytest.approx(1.0, abs=1e-6)
    assert counts["alpha_empirical"] == 1.0


def test_gate_fails_on_a_draft_that_is_no_use(distill, target):
    with pytest.raises(SystemExit) as stopped:
        distill(
            "pipeline=evaluate",
            "draft=ready",
            f"draft.model.id={target}",
            "evaluate.gate=true",
            "evaluate.margin=1000",
            "data.evaluation_rows=8",
            "evaluate.num_prompts=6",
        )
    assert stopped.value.code == 1


def test_gate_lets_pass_what_is_not_known(distill, target):
    ready = ["pipeline=evaluate", "draft=ready", f"draft.model.id={target}"]
    distill(*ready, "evaluate.gate=true", "evaluate.margin=1000")  # three timed batches say nothing


def change(name, **values):
    """A change of one of the target's JSON files."""

    def apply(folder):
        path = folder / name
        found = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(found | values))

    return apply


@pytest.mark.parametrize(
    "apply",
    [
        change("tokenizer_config.json", eos_token="<|im_start|>"),
        change("special_tokens_map.json", eos_token="<|im_start|>"),
        change("generation_config.json", eos_token_id=[257, 256]),
        lambda folder: (folder / "chat_template.jinja").write_text(
            (folder / "chat_template.jinja").read_text() + "{# other #}"
        ),
    ],
)
def test_what_decides_the_ids_is_part_of_the_corpus(distill, target, tmp_path, manifests, apply):
    folder = tmp_path / "target"
    shutil.copytree(target, folder)
    distill("pipeline=prepare", f"target.id={folder}")
    apply(folder)
    distill("pipeline=prepare", f"target.id={folder}")
    assert manifests() == {"prepare": 2}


def test_flags_of_the_template_stand_in_the_card_and_other_ones_warn(distill, capsys, tmp_path):
    flags = "+target.chat_template_kwargs.enable_thinking="
    distill("pipeline=export", f"{flags}false")
    (card,) = (tmp_path / "outputs/artifacts/export").glob("*/*/README.md")
    assert "- template_flags: enable_thinking=false\n" in card.read_text()
    (candidates,) = (tmp_path / "outputs/artifacts/train").glob("*/candidates")
    asked = ["pipeline=evaluate", f"evaluate.candidates=[{candidates.parent}]"]
    distill(*asked, f"{flags}false")
    assert "was trained with" not in "".join(capsys.readouterr())
    distill(*asked, f"{flags}true")
    said = "".join(capsys.readouterr())
    assert "was trained with enable_thinking=false and is measured with" in said


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("trainer.devices=1", "trainer.devices=auto"),
        ("trainer.strategy=auto", "trainer.strategy=ddp"),
        ("trainer.validate_every=0.5", "trainer.validate_every=0.25"),
        ("trainer.resume_every_seconds=60", "trainer.resume_every_seconds=1"),
        ("generate.batch_size=8", "generate.batch_size=3"),
    ],
)
def test_what_does_not_change_content_redoes_nothing(distill, prompts, manifests, before, after):
    data = ["pipeline=train", "data=jsonl", f"data.source.path={prompts}"]
    distill(*data, before)
    distill(*data, after)
    assert manifests() == {"prepare": 1, "generate": 1, "train": 1}
