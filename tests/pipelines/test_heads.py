"""A head that reads the target goes the whole road, beside a separate draft."""

import json
from pathlib import Path

import pytest
import torch

from distill.evaluate.records import LOOKUP
from distill.models.draft import load_draft
from distill.models.folder import folder_is_head
from tests.pipelines.conftest import write_model


@pytest.fixture(scope="session")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with enough layers to read."""
    return write_model(tmp_path_factory.mktemp("deep"), layers=6, spread=0.2)


def artifacts(tmp_path: Path, stage: str) -> list[Path]:
    return sorted((tmp_path / "outputs" / "artifacts" / stage).glob("*/manifest.json"))


@pytest.mark.parametrize("signal", ["live", "hidden"])
def test_a_head_is_trained_measured_registered_and_exported(
    distill, deep, prompts, tmp_path, signal
):
    common = [f"target.id={deep}", "data=jsonl", f"data.source.path={prompts}"]
    head = ["draft=eagle3", "draft.vocabulary=40", f"signal={signal}"]
    distill("pipeline=full", *common, *head, "name=heads")
    (export,) = artifacts(tmp_path, "export")
    folder = export.parent / "heads-draft"
    assert folder_is_head(folder)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (config["draft_vocab_size"], config["vocab_size"]) == (40, 258)
    written = load_draft(folder, dtype=torch.bfloat16, device="cpu")
    assert 257 in written.kept.tolist()  # the end token is always kept
    assert written.t2d.nonzero()[:, 0].tolist() == written.kept.tolist()
    card = (folder / "README.md").read_text()
    assert '"method":"eagle3"' in card
    assert json.loads(export.read_text())["counts"]["proof"]["identical"]
    (judged,) = artifacts(tmp_path, "judge")
    table = json.loads((judged.parent / "evaluation.json").read_text())["table"]
    assert all(0 < row["alpha"]["value"] <= 1 for row in table if row["alpha"])


def test_kinds_stand_side_by_side_in_one_evaluation(distill, deep, prompts, tmp_path):
    common = [f"target.id={deep}", "data=jsonl", f"data.source.path={prompts}"]
    distill("pipeline=train", *common, "draft=eagle3", "draft.vocabulary=60")
    distill("pipeline=train", *common, "draft=svd")
    trainings = ",".join(str(path.parent) for path in artifacts(tmp_path, "train"))
    settings = ["evaluate.max_candidates=4", "evaluate.num_draft_tokens=[2]"]
    distill("pipeline=evaluate", *common, *settings, f"evaluate.candidates=[{trainings}]")
    (judged,) = artifacts(tmp_path, "judge")
    evaluation = json.loads((judged.parent / "evaluation.json").read_text())
    assert len({row["candidate"] for row in evaluation["table"]} - {LOOKUP}) == 4


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["draft.vocabulary=0"], "draft.vocabulary is 0"),
        (["draft.vocabulary=259"], "draft.vocabulary is 259"),
        (["draft.unroll=0"], "draft.unroll is 0"),
        (["signal=top_k"], "a head learns from whole distributions"),
        (["objective.temperature=2.0"], "temperature is 2.0"),
        (["data.on_policy=0.5"], "data.on_policy"),
        (["trainer.compile=true"], "trainer.compile"),
        (["objective.divergence={acceptance:1.0,cross_entropy:0.5}"], "cross_entropy"),
    ],
)
def test_what_a_head_cannot_do_is_one_line(distill, deep, prompts, capsys, arguments, line):
    common = [f"target.id={deep}", "data=jsonl", f"data.source.path={prompts}", "draft=eagle3"]
    with pytest.raises(SystemExit) as stopped:
        distill("pipeline=train", *common, *arguments)
    assert stopped.value.code == 2
    assert line in capsys.readouterr().err.splitlines()[-1]


def test_a_target_of_few_layers_has_no_head(distill, prompts, capsys):
    with pytest.raises(SystemExit):
        distill("pipeline=train", "data=jsonl", f"data.source.path={prompts}", "draft=eagle3")
    assert "it needs 6 or more" in capsys.readouterr().err.splitlines()[-1]


def test_the_probe_times_heads_beside_drafts_and_plans_them(distill, deep, capsys):
    distill(
        f"target.id={deep}", "pipeline=probe", "draft=eagle3", "draft.vocabulary=40",
        "probe.drafts=[{hidden_size:32,num_hidden_layers:1}]", "probe.head_vocabularies=[40,999]",
        "probe.batch_sizes=[1]", "probe.context_lengths=[16]", "probe.num_draft_tokens=[2]",
        "probe.timings=2",
    )  # fmt: skip
    said = capsys.readouterr().out
    assert "eagle3, 40 ids" in said
    assert "999" not in said  # more than the target has
    assert "head share" in said
