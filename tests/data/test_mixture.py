"""Sources in shares: exact, until the first runs dry, with nothing held out learnt elsewhere."""

import json
from collections import Counter

import pytest

from distill.data.corpus import build_corpus, in_shares, load_corpus
from distill.data.sources import JsonlSource, MixtureSource
from distill.errors import UserError
from distill.schema import DataConfig, TargetConfig


def test_in_shares_by_hand() -> None:
    """Weights 2 and 1. Taken/weight decides: a at 0|0, b at ½|0, a at ½|1 and 1|1, then b."""
    streams = [iter(["a1", "a2", "a3", "a4"]), iter(["b1", "b2", "b3"])]
    mixed = list(in_shares(streams, [2.0, 1.0], to_the_end=False))
    assert mixed == ["a1", "b1", "a2", "a3", "b2", "a4"]
    streams = [iter(["a1"]), iter(["b1", "b2", "b3"])]
    assert list(in_shares(streams, [1.0, 1.0], to_the_end=True)) == ["a1", "b1", "b2", "b3"]


@pytest.fixture
def jsonl(tmp_path):
    def make(name: str, prompts: list[str], **options) -> JsonlSource:
        path = tmp_path / f"{name}.jsonl"
        rows = [{"prompt": p, "response": "yes", "domain": name} for p in prompts]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return JsonlSource(str(path), **options)

    return make


def test_training_rows_come_in_their_shares(jsonl, make_tokenizer, tmp_path) -> None:
    sources = {
        "many": {"weight": 1.0, "source": jsonl("many", [f"many {i}" for i in range(300)])},
        "few": {"weight": 3.0, "source": jsonl("few", [f"few {i}" for i in range(90)])},
    }
    mixture = MixtureSource(sources)
    mixture.check()
    data = DataConfig(max_length=96, prompt_tokens=16, train_rows=100)
    build_corpus(mixture, make_tokenizer(), data, TargetConfig(), tmp_path)
    corpus = load_corpus(tmp_path)
    # 25 : 75 of a hundred, were there enough of `few`: it ends where it runs dry.
    shares = Counter(corpus["train"]["domain"])
    assert shares["few"] > 70
    assert abs(shares["few"] - 3 * shares["many"]) <= 3
    assert set(corpus["evaluation"]["domain"]) == {"many", "few"}
    assert all(name.split("/")[0] in sources for name in corpus["train"]["id"])


def test_what_one_part_holds_out_no_other_trains_on(jsonl) -> None:
    shared = [f"prompt {i}" for i in range(50)]
    mixture = MixtureSource(
        {
            "a": {"weight": 1.0, "source": jsonl("a", shared, evaluation_fraction=0.4)},
            "b": {"weight": 1.0, "source": jsonl("b", shared, evaluation_fraction=0.1)},
        }
    )
    rows = list(mixture.rows())
    held_out = {row.group for row in rows if row.split != "train"}
    assert held_out
    assert not held_out & {row.group for row in rows if row.split == "train"}
    assert any("held-out row of a" in str(problem) for problem in mixture.problems)


def test_weights_are_part_of_the_fingerprint_and_checked(jsonl) -> None:
    def mixture(weight):
        sources = {name: jsonl(name, ["one", "two", name]) for name in ("a", "b")}
        weights = {"a": 1.0, "b": weight}
        return MixtureSource({n: {"weight": weights[n], "source": s} for n, s in sources.items()})

    assert mixture(1.0).fingerprint() != mixture(2.0).fingerprint()
    with pytest.raises(UserError, match=r"parts\.b\.weight"):
        mixture(0.0).check()
