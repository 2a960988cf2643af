"""A parallel draft goes the whole road, from its own start and from a distilled draft."""

import json
import shutil
from pathlib import Path

import pytest

from distill.models.parallel import choose_mask, unused_ids
from tests.pipelines.conftest import SPECIAL, write_model

END = 256 + len(SPECIAL)


@pytest.fixture(scope="session")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with four reserved tokens."""
    return write_model(tmp_path_factory.mktemp("roomy"), spread=0.2, reserved=4)


def artifacts(tmp_path: Path, stage: str) -> list[Path]:
    return sorted((tmp_path / "outputs" / "artifacts" / stage).glob("*/manifest.json"))


def test_a_parallel_draft_is_trained_measured_registered_and_exported(
    distill, roomy, prompts, tmp_path
):
    common = [f"target.id={roomy}", "data=jsonl", f"data.source.path={prompts}"]
    distill("pipeline=full", *common, "draft=parallel", "draft.parallel=3", "name=masks")
    (export,) = artifacts(tmp_path, "export")
    folder = export.parent / "masks-draft"
    config = json.loads((folder / "config.json").read_text())
    assert config["pard_token"] == END + 3  # the last reserved token
    assert config["architectures"] == ["LlamaForCausalLM"]
    card = (folder / "README.md").read_text()
    assert '"parallel_drafting":true' in card
    assert json.loads(export.read_text())["counts"]["proof"]["engine"] == "distill"
    assert json.loads(export.read_text())["counts"]["proof"]["identical"]


def test_a_distilled_draft_becomes_a_parallel_one_and_is_trained_further(
    distill, roomy, prompts, tmp_path, capsys
):
    common = [f"target.id={roomy}", "data=jsonl", f"data.source.path={prompts}"]
    distill("pipeline=train", *common, "draft=svd")
    (first,) = artifacts(tmp_path, "train")
    base = max((first.parent / "candidates").iterdir())
    existing = ["draft=pretrained", "draft.model.source=folder"]
    converted = [*existing, f"draft.model.id={base}", "draft.parallel=3", f"draft.mask_token={END}"]
    distill("pipeline=train", *common, *converted, "signal=top_k")
    (second,) = (one for one in artifacts(tmp_path, "train") if one != first)
    draft = max((second.parent / "candidates").iterdir())
    assert json.loads((draft / "config.json").read_text())["pard_token"] == END
    with pytest.raises(SystemExit):
        distill("pipeline=train", *common, *existing, f"draft.model.id={draft}")
    assert "is a parallel draft" in capsys.readouterr().err.splitlines()[-1]
    trainings = f"evaluate.candidates=[{first.parent},{second.parent}]"
    distill("pipeline=evaluate", *common, "evaluate.max_candidates=4", trainings)
    assert artifacts(tmp_path, "judge")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["draft.parallel=0"], "draft.parallel is 0"),
        (["draft.parallel=1"], "draft.parallel is 1"),
        (["draft.retention=0"], "draft.retention is 0"),
        (["draft.least_retention=1.5"], "draft.least_retention is 1.5"),
        (["draft.mask_token=65"], f"draft.mask_token is 65, which is in use: use {END + 3}"),
        (["draft.mask_token=257"], "draft.mask_token is 257, which is in use"),
        (["draft.mask_token=9999"], f"outside the vocabulary of {END + 4} ids"),
        (["draft.mask_token=-1"], "outside the vocabulary"),
        (["draft.init=eagle3"], "draft.init is eagle3"),
    ],
)
def test_what_a_parallel_draft_cannot_be_is_one_line(
    distill, roomy, prompts, capsys, arguments, line
):
    common = [f"target.id={roomy}", "data=jsonl", f"data.source.path={prompts}", "draft=parallel"]
    with pytest.raises(SystemExit) as stopped:
        distill("pipeline=train", *common, *arguments)
    assert stopped.value.code == 2
    assert line in capsys.readouterr().err.splitlines()[-1]


def test_a_target_whose_ids_are_all_in_use_has_no_parallel_draft(distill, prompts, capsys):
    with pytest.raises(SystemExit):
        distill("pipeline=train", "data=jsonl", f"data.source.path={prompts}", "draft=parallel")
    assert "every id of" in capsys.readouterr().err.splitlines()[-1]


def test_an_id_that_the_rows_have_is_passed_over_and_refused_where_it_is_asked_for(roomy, tmp_path):
    assert unused_ids(roomy) == [END + 3, END + 2, END + 1, END]
    wider = tmp_path / "wider"
    shutil.copytree(roomy, wider)
    config = json.loads((wider / "config.json").read_text())
    (wider / "config.json").write_text(json.dumps(config | {"vocab_size": END + 6}))
    # Rows without a token come first.
    assert unused_ids(wider)[:3] == [END + 5, END + 4, END + 3]
    counts = [0] * (END + 4)
    counts[END + 3] = 5
    assert choose_mask(roomy, None, counts) == END + 2
    with pytest.raises(Exception, match=f"occurs 5 times in the training rows: use {END + 2}"):
        choose_mask(roomy, END + 3, counts)
    with pytest.raises(Exception, match="every id that could be"):
        choose_mask(roomy, None, [1] * (END + 4))
