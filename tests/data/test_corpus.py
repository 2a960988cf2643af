import json
import os
import subprocess
import sys

import pytest

from distill.data.corpus import build_corpus, load_corpus, load_groups
from distill.data.sources import CodeSource, JsonlSource
from distill.errors import UserError
from distill.schema import DataConfig, TargetConfig

TARGET = TargetConfig(source="folder", id="x")


def data(**settings) -> DataConfig:
    return DataConfig(source={}, **{"max_length": 64, "prompt_tokens": 20, **settings})


@pytest.fixture
def library(tmp_path):
    """Sixty modules, each with text of its own, large enough to be held out."""
    root = tmp_path / "library"
    root.mkdir()
    for module in range(60):
        body = "".join(f"def f{module}_{i}(x):\n    return x + {i}\n\n" for i in range(300))
        (root / f"m{module}.py").write_text(body)
    return CodeSource(str(root), validation_fraction=0.2, evaluation_fraction=0.3)


def test_raw_text_becomes_windows_in_training_and_prompts_at_definitions(
    make_tokenizer, library, tmp_path
):
    tokenizer = make_tokenizer(adds_bos=True)
    settings = data(train_rows=100, validation_rows=8, evaluation_rows=20)
    counts = build_corpus(library, tokenizer, settings, TARGET, tmp_path)
    corpus = load_corpus(tmp_path)
    assert {name: len(split) for name, split in corpus.items()} == {
        "train": 100,
        "validation": 8,
        "evaluation": 20,
    }
    assert set(corpus["train"]["prompt_length"]) == {0}
    assert set(corpus["evaluation"]["prompt_length"]) == {20}
    for row in corpus["evaluation"]:
        assert row["input_ids"][0] == 1
        assert tokenizer.decode(row["input_ids"][1:5]).replace(" ", "") == "def"
    assert all(len(row["input_ids"]) <= 64 and row["input_ids"][0] == 1 for row in corpus["train"])
    assert counts["train_tokens"] - 100 == counts["train_supervised_tokens"]
    assert counts["unanswered"] == 0


def test_evaluation_examples_know_the_module_that_they_were_cut_from(
    make_tokenizer, library, tmp_path
):
    build_corpus(library, make_tokenizer(), data(train_rows=8), TARGET, tmp_path)
    modules = {row.id: row.group for row in library.rows()}
    groups = load_groups(tmp_path)
    ids = load_corpus(tmp_path)["evaluation"]["id"]
    assert set(groups) == set(ids)
    assert all(groups[id] == modules[id.rpartition(":")[0]] for id in ids)


def test_groups_of_the_users_own_stay_together_and_are_told_apart(make_tokenizer, tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [
        {"prompt": f"Question {n} of many?", "text": "Yes.", "id": f"math:{n}", "group": n % 30}
        for n in range(90)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = JsonlSource(str(path), validation_fraction=0.2, evaluation_fraction=0.2)
    build_corpus(source, make_tokenizer(), data(), TARGET, tmp_path / "corpus")
    rows = list(source.rows())
    splits = {
        group: {row.split for row in rows if row.group == group}
        for group in {row.group for row in rows}
    }
    assert len(splits) == 30
    assert all(len(found) == 1 for found in splits.values())
    groups = load_groups(tmp_path / "corpus")
    assert groups == {row.id: row.group for row in rows if row.split == "evaluation"}
    assert not source.problems  # `group` is read


def test_a_prompt_of_two_groups_stands_in_one_split_only(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [
        {"prompt": f"Question {n // 2}?", "text": f"Answer {n}.", "group": n} for n in range(60)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = JsonlSource(str(path), validation_fraction=0.2, evaluation_fraction=0.2)
    held = {r.content.messages[0]["content"] for r in source.rows() if r.split != "train"}
    learnt = {r.content.messages[0]["content"] for r in source.rows() if r.split == "train"}
    assert held
    assert not held & learnt
    assert {problem.reason for problem in source.problems} == {"same prompt as a held-out row"}


def test_windows_join_up_to_their_document(make_tokenizer, library, tmp_path):
    tokenizer = make_tokenizer()
    build_corpus(library, tokenizer, data(train_rows=30), TARGET, tmp_path)
    rows = load_corpus(tmp_path)["train"]
    [document] = {name.split("@")[0] for name in rows["id"]}
    text = "".join("".join(tokenizer.convert_ids_to_tokens(row["input_ids"])) for row in rows)
    whole = next(row.content.text for row in library.rows() if row.id == document)
    assert whole.startswith(text)


def test_held_out_rows_are_spread_over_modules(make_tokenizer, library, tmp_path):
    build_corpus(
        library, make_tokenizer(), data(train_rows=10, evaluation_rows=12), TARGET, tmp_path
    )
    modules = [name.split(":")[0] for name in load_corpus(tmp_path)["evaluation"]["id"]]
    assert len(set(modules)) == 12


def test_no_module_stands_in_two_splits(make_tokenizer, library, tmp_path):
    build_corpus(library, make_tokenizer(), data(), TARGET, tmp_path)
    modules = {
        name: {row.replace("@", ":").split(":")[0] for row in split["id"]}
        for name, split in load_corpus(tmp_path).items()
    }
    assert sum(map(len, modules.values())) == len(set().union(*modules.values()))


def test_same_seed_same_corpus_and_held_out_rows_never_depend_on_it(
    make_tokenizer, library, tmp_path
):
    found = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / name).mkdir()
        settings = data(train_rows=50, validation_rows=5, evaluation_rows=5)
        build_corpus(library, make_tokenizer(), settings, TARGET, tmp_path / name, seed=seed)
        found.append({k: v[:] for k, v in load_corpus(tmp_path / name).items()})
    assert found[0] == found[1]
    assert found[0]["train"] != found[2]["train"]
    assert found[0]["evaluation"] == found[2]["evaluation"]
    assert found[0]["validation"] == found[2]["validation"]


def test_problems_are_written_beside_the_dataset(make_tokenizer, tmp_path):
    path = tmp_path / "p.jsonl"
    rows = [{"prompt": f"{i}", "text": "a"} for i in range(20)]
    rows += [{"prompt": ""}, {"prompt": "x" * 100}]
    path.write_text("\n".join(map(json.dumps, rows)))
    counts = build_corpus(JsonlSource(str(path)), make_tokenizer(), data(), TARGET, tmp_path)
    written = json.loads((tmp_path / "problems.json").read_text())
    assert [(row["line"], row["reason"]) for row in written["rows"]] == [(21, "`prompt` is empty")]
    assert list(written["dropped"].values()) == [1]
    assert (counts["skipped_rows"], counts["dropped_rows"]) == (1, 1)


def test_rows_without_text_are_counted_as_unanswered(make_tokenizer, tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"{i}"}) for i in range(20)))
    counts = build_corpus(JsonlSource(str(path)), make_tokenizer(), data(), TARGET, tmp_path)
    assert counts["unanswered"] == counts["train_rows"] + counts["validation_rows"]
    assert counts["train_supervised_tokens"] == 0


def test_corpus_that_cannot_be_is_refused(make_tokenizer, tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": "x" * 70 + str(i)}) for i in range(9)))
    source = JsonlSource(str(path))
    with pytest.raises(UserError, match=r"No row is left for train.*max_length"):
        build_corpus(source, make_tokenizer(), data(), TARGET, tmp_path)
    with pytest.raises(UserError, match="prompt_tokens"):
        build_corpus(source, make_tokenizer(), data(prompt_tokens=64), TARGET, tmp_path)
    with pytest.raises(UserError, match="pipeline=prepare"):
        load_corpus(tmp_path)


def test_nothing_is_left_in_the_home_folder(library, tmp_path):
    """`datasets` keeps caches in the home folder unless nothing it does needs one."""
    home = tmp_path / "home"
    home.mkdir()
    script = f"""
from pathlib import Path
import datasets
from distill.data.corpus import load_corpus, save_corpus, SPLITS
folder = Path({str(tmp_path)!r})
save_corpus({{split: [] for split in SPLITS}}, folder)
load_corpus(folder)
"""
    environment = {**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1"}
    environment = {k: v for k, v in environment.items() if not k.startswith(("HF_", "XDG_"))}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    assert [path for path in home.rglob("*") if path.is_file()] == []


def test_a_share_of_raw_text_is_left_for_the_target_to_continue(make_tokenizer, library, tmp_path):
    sizes = {"train_rows": 400, "validation_rows": 8, "evaluation_rows": 20}
    own, continued = tmp_path / "own", tmp_path / "continued"
    for folder, share in ((own, 0.0), (continued, 0.25)):
        folder.mkdir()
        build_corpus(library, make_tokenizer(), data(continued=share, **sizes), TARGET, folder)
    before, after = load_corpus(own), load_corpus(continued)
    cut = [row for row in after["train"] if row["prompt_length"]]
    assert 0.15 < len(cut) / 400 < 0.35
    assert {(row["prompt_length"], len(row["input_ids"])) for row in cut} == {(20, 20)}
    texts = dict(zip(before["train"]["id"], before["train"]["input_ids"], strict=True))
    for row in after["train"]:  # the same windows in the same order, the drawn ones cut
        assert row["input_ids"] == texts[row["id"]][: len(row["input_ids"])]
    assert after["train"]["id"] == before["train"]["id"]
    assert set(after["validation"]["prompt_length"]) == {20}
    assert after["evaluation"].to_list() == before["evaluation"].to_list()
