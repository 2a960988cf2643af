from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from distill.data.answers import answer_prompts, plan_shards
from distill.data.corpus import SPLITS, load_corpus, save_corpus
from distill.data.encode import Example
from distill.errors import UserError
from distill.schema import GenerateConfig
from tests.tiny import tiny_llama

GENERATE = GenerateConfig(batch_size=3, shard_rows=5, max_new_tokens=6)


@pytest.fixture
def corpus(tmp_path):
    """17 prompts and one answered row in train, 4 prompts in validation, 2 in evaluation."""
    generator = np.random.default_rng(0)

    def prompts(name, count):
        for i in range(count):
            ids = generator.integers(4, 60, 3 + (7 * i) % 11).astype(np.int32)
            yield Example(f"{name}{i}", "d", ids, len(ids))

    done = Example("done", "d", np.array([5, 6, 7], dtype=np.int32), 1)
    parts = ([*prompts("t", 17), done], list(prompts("v", 4)), list(prompts("e", 2)))
    folder = tmp_path / "corpus"
    folder.mkdir()
    save_corpus(dict(zip(SPLITS, parts, strict=True)), folder)
    return load_corpus(folder)


@pytest.fixture(scope="module")
def model():
    return tiny_llama(vocab_size=60, eos_token_id=2)


def rows(folder):
    return {name: split[:] for name, split in load_corpus(folder).items()}


def test_every_bare_prompt_of_train_and_validation_is_answered(model, corpus, tmp_path):
    counts = answer_prompts(model, corpus, GENERATE, [2], tmp_path)
    assert (counts["answered_rows"], counts["shards"]) == (21, 5)
    answered = load_corpus(tmp_path)
    assert answered["evaluation"][:] == corpus["evaluation"][:]
    assert answered["train"][17] == corpus["train"][17]
    for split in ("train", "validation"):
        for before, after in zip(corpus[split], answered[split], strict=True):
            new = after["input_ids"][len(before["input_ids"]) :]
            assert after["input_ids"][: len(before["input_ids"])] == before["input_ids"]
            assert after["prompt_length"] == before["prompt_length"]
            assert 2 not in new[:-1]
            assert after["id"] == "done" or len(new) == 6 or new[-1] == 2


def test_answers_depend_on_neither_batch_nor_shard(model, corpus, tmp_path):
    one, two = (tmp_path / name for name in "12")
    answer_prompts(model, corpus, GENERATE, [2], one)
    alone = GenerateConfig(batch_size=1, shard_rows=21, max_new_tokens=6)
    answer_prompts(model, corpus, alone, [2], two)
    assert rows(one) == rows(two)
    answer_prompts(model, corpus, GENERATE, [2], one, seed=1)  # shards are there: nothing is redone
    assert rows(one) == rows(two)


@pytest.mark.filterwarnings("ignore:the target puts")
def test_padded_ids_are_never_answered(model, corpus, tmp_path):
    """Rows 60 to 69 of the head are padding, and here far the likeliest."""
    padded = tiny_llama(vocab_size=70, eos_token_id=2)
    padded.lm_head.weight.data[60:] *= 1000
    answer_prompts(padded, corpus, GENERATE, [2], tmp_path, vocabulary_size=60)
    answered = load_corpus(tmp_path)
    assert max(max(ids) for split in answered.values() for ids in split["input_ids"]) < 60


def test_restart_makes_only_missing_shards_and_the_same_answers(model, corpus, tmp_path):
    class Killed(BaseException):
        pass

    calls = 0

    def dying(*arguments, **settings):
        nonlocal calls
        calls += 1
        if calls == 4:
            raise Killed
        return echo(*arguments, **settings)

    with pytest.raises(Killed):
        answer_prompts(model, corpus, GENERATE, [2], tmp_path, decode=dying)
    assert len(list((tmp_path / "shards").glob("*.parquet"))) == 1
    answer_prompts(model, corpus, GENERATE, [2], tmp_path, decode=dying)
    assert calls == 4 + 7
    whole = tmp_path / "whole"
    answer_prompts(model, corpus, GENERATE, [2], whole, decode=echo)
    assert rows(whole) == rows(tmp_path)


def test_processes_share_the_shards(model, corpus, tmp_path):
    """Both return when all is there, and no shard is made twice."""
    asked = []

    def counting(model, prompts, **settings):
        asked.extend(settings["row_ids"])
        return echo(model, prompts, **settings)

    def work(_):
        return answer_prompts(model, corpus, GENERATE, [2], tmp_path / "two", decode=counting)

    with ThreadPoolExecutor(2) as pool:
        counts = list(pool.map(work, range(2)))
    assert [one["answered_rows"] for one in counts] == [21, 21]
    assert len(asked) == len(set(asked)) == 21
    answer_prompts(model, corpus, GENERATE, [2], tmp_path / "one", decode=echo)
    assert rows(tmp_path / "one") == rows(tmp_path / "two")


def echo(model, prompts, *, row_ids, **_):
    """Answers with digits of the row's own random stream."""
    return SimpleNamespace(
        tokens=[[4 + row % 50, 4 + row // 50 % 50] for row in row_ids], prompts=prompts
    )


def test_batches_hold_prompts_of_about_one_length(corpus):
    shards = plan_shards(corpus, 5)
    lengths = [question.length for shard in shards for question in shard]
    assert lengths == sorted(lengths, reverse=True)
    assert sorted(len(shard) for shard in shards) == [1, 5, 5, 5, 5]


def test_shards_of_another_corpus_are_refused(model, corpus, tmp_path):
    answer_prompts(model, corpus, GENERATE, [2], tmp_path, decode=echo)
    corpus["validation"] = corpus["validation"].select([0, 1, 2])
    with pytest.raises(UserError, match="other rows"):
        answer_prompts(model, corpus, GENERATE, [2], tmp_path, decode=echo)
