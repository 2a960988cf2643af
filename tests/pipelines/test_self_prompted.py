"""A job without data: the target's template is begun, its words kept, then answered."""

from functools import partial
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from distill.data.corpus import load_corpus
from distill.data.self_prompt import write_prompts

JOB = (
    "data=self_prompted", "data.source.num_prompts=40", "data.source.validation_fraction=0.2",
    "data.source.evaluation_fraction=0.2", "data.source.shard_rows=16",
)  # fmt: skip


@pytest.fixture
def asked(monkeypatch, target):
    """Every sample is another prompt. What the target was asked, in order."""
    tokenizer = AutoTokenizer.from_pretrained(target)
    openings: list[str] = []

    def decode(_model, prompts, *, eos_token_ids, **_):
        openings.extend(tokenizer.decode(prompt) for prompt in prompts)
        said = [f"please count to {len(openings) - n} now" for n in range(len(prompts))]
        return SimpleNamespace(tokens=[[*tokenizer(text)["input_ids"], 257] for text in said])

    monkeypatch.setattr(
        "distill.pipelines.prepare.write_prompts", partial(write_prompts, decode=decode)
    )
    return openings


def test_prompts_are_written_answered_and_learnt_from(distill, asked, target, tmp_path) -> None:
    distill("pipeline=train", *JOB)
    assert len(asked) == 48
    assert set(asked) == {"<|im_start|>user\n"}
    artifacts = tmp_path / "outputs" / "artifacts"
    stages = {path.parent.parent.name for path in artifacts.glob("*/*/manifest.json")}
    assert stages == {"self_prompt", "prepare", "generate", "train"}
    (folder,) = (artifacts / "generate").glob("*/manifest.json")
    tokenizer = AutoTokenizer.from_pretrained(target)
    for row in load_corpus(folder.parent)["train"].to_list():
        prompt = tokenizer.decode(row["input_ids"][: row["prompt_length"]])
        assert prompt.startswith("<|im_start|>user\nplease count to ")
        assert prompt.endswith(" now<|im_end|>\n<|im_start|>assistant\n")
        assert len(row["input_ids"]) > row["prompt_length"]

    distill("pipeline=train", *JOB)  # up to date
    assert len(asked) == 48


def test_a_part_of_a_mixture(distill, asked, prompts, tmp_path) -> None:
    distill(
        "pipeline=prepare", "data=mixture", "data.train_rows=20",
        "~data.source.parts.code", f"data.source.parts.chat.source.path={prompts}",
        "+data.source.parts.own.weight=1", "+data.source.parts.own.source.num_prompts=40",
        "+data.source.parts.own.source._target_=distill.data.sources.SelfPromptedSource",
    )  # fmt: skip
    (folder,) = (tmp_path / "outputs" / "artifacts" / "prepare").glob("*/manifest.json")
    domains = load_corpus(folder.parent)["train"]["domain"]
    assert sorted(set(domains)) == ["math", "self_prompted"]
    assert abs(domains.count("math") - 10) <= 1
    assert asked
