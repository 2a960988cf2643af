"""The target answers the prompts that have no text, by plain decoding, in resumable shards."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock
from transformers import PreTrainedModel

from distill.data.config import GenerateConfig
from distill.data.corpus import DATASET, FEATURES, save_corpus, unanswered
from distill.data.sources.splits import stable_hash
from distill.errors import UserError
from distill.files import whole_file
from distill.progress import Progress
from distill.shards import numbered, share
from distill.speculative.decode import decode
from distill.speculative.sampling import Sampling

SHARDS = "shards"
PIECES = (f"{SHARDS}/*.parquet",)
"""Files that are made one by one: what is left of them after damage serves again."""
ANSWERED_SPLITS = ("train", "validation")
"""An evaluation row keeps its bare prompt: evaluation decodes it itself."""


class Decoded(Protocol):
    """What decoding returns, as far as it is read here."""

    @property
    def tokens(self) -> list[list[int]]:
        """The new ids of each prompt."""
        ...


Decode = Callable[..., Decoded]


@dataclass(frozen=True)
class Question:
    """A prompt to answer: row `row` of `split`."""

    split: str
    row: int
    id: str
    prompt: list[int]

    @property
    def stream(self) -> int:
        """The random stream is the row's own, whatever shard, batch or rank it falls to."""
        return stable_hash(self.split, self.id)


def answer_prompts(
    model: PreTrainedModel,
    corpus: datasets.DatasetDict,
    generate: GenerateConfig,
    eos_token_ids: Sequence[int],
    folder: Path,
    *,
    vocabulary_size: int | None = None,
    seed: int = 0,
    decode: Decode = decode,
) -> dict[str, Any]:
    """Write `folder/dataset`, the corpus with the target's answers appended to its bare prompts.

    Shards lie in `folder/shards` as they are finished; a second call makes those that are missing,
    and the result is the same. Processes that call this for one folder share the shards, and each
    returns when all are there. An answer that reaches `max_new_tokens` is kept without an EOS.
    vocabulary_size: real ids that the draft shares; a padded head has more rows.

    Returns:
        answered_rows, answer_tokens, shards, and tokens_per_second of this call.

    Raises:
        UserError: the shards that are there answer the rows of another corpus.
    """
    shards = plan_shards(corpus, generate.shard_rows)
    paths = numbered(folder / SHARDS, len(shards), "parquet")
    missing = _unfinished(shards, paths)

    def answer(questions: list[Question], watch: Callable[[int], None]) -> list[list[int]]:
        return decode(
            model,
            [question.prompt for question in questions],
            sampling=Sampling(temperature=generate.temperature, top_p=generate.top_p),
            max_new_tokens=generate.max_new_tokens,
            eos_token_ids=tuple(eos_token_ids),
            seed=seed,
            row_ids=[question.stream for question in questions],
            vocabulary_size=vocabulary_size,
            watch=watch,
        ).tokens

    with Progress("answering", missing, first="reading the prompts of the first batch") as progress:

        def make(number: int) -> None:
            answers: list[list[int]] = []
            if (done := missing - _unfinished(shards, paths)) > progress.done:  # by others too
                progress.reach(done)
            for batch in batches(shards[number], generate.batch_size):
                before, budget = progress.done, len(batch) * generate.max_new_tokens

                def watch(rest: int, before: float = before, budget: int = budget) -> None:
                    rows = (budget - rest) / generate.max_new_tokens
                    progress.reach(before + rows)

                found = answer(batch, watch)
                progress.reach(before + len(batch), sum(map(len, found)))
                answers += found
            write_shard(shards[number], answers, paths[number])

        share(paths, make)
        tokens_per_second = progress.tokens_per_second
    found = read_shards(shards, paths)
    with FileLock(folder / "merge.lock"):  # two processes may end at the same moment
        if not (folder / DATASET).is_dir():
            save_corpus(merged(corpus, found), folder)
    return {
        "answered_rows": len(found),
        "answer_tokens": sum(map(len, found.values())),
        "shards": len(shards),
        "tokens_per_second": tokens_per_second,
    }


def _unfinished(shards: list[list[Question]], paths: list[Path]) -> int:
    """Questions in shards that are not there."""
    return sum(
        len(questions) for questions, path in zip(shards, paths, strict=True) if not path.exists()
    )


def plan_shards(corpus: datasets.DatasetDict, shard_rows: int) -> list[list[Question]]:
    """Questions in order of prompt length, so that a batch holds prompts of about one length.

    Long ones first: a batch that does not fit into memory fails at once, not after hours.
    """
    questions = [
        Question(split, row, corpus[split][row]["id"], corpus[split][row]["input_ids"])
        for split in ANSWERED_SPLITS
        for row in unanswered(corpus[split]).tolist()
    ]
    questions.sort(key=lambda question: (-len(question.prompt), question.id))
    return list(batches(questions, shard_rows))


def batches(questions: list[Question], size: int) -> Iterator[list[Question]]:
    """Consecutive questions, `size` at a time."""
    for start in range(0, len(questions), size):
        yield questions[start : start + size]


def write_shard(questions: list[Question], answers: list[list[int]], path: Path) -> None:
    """Write a shard's answers with the rows that they belong to."""
    table = pa.table(
        {
            "split": [question.split for question in questions],
            "id": [question.id for question in questions],
            "answer": pa.array(answers, pa.list_(pa.int32())),
        }
    )
    with whole_file(path) as partial:
        pq.write_table(table, partial)


def read_shards(
    shards: list[list[Question]], paths: list[Path]
) -> dict[tuple[str, int], list[int]]:
    """Return (split, row) → answer.

    Raises:
        UserError: a shard has other rows, so that it would answer the wrong prompts.
    """
    found = {}
    for questions, path in zip(shards, paths, strict=True):
        rows = pq.read_table(path).to_pylist()
        if [(r["split"], r["id"]) for r in rows] != [(q.split, q.id) for q in questions]:
            raise UserError(f"{path} answers other rows than this corpus has: delete its folder.")
        found |= {(q.split, q.row): r["answer"] for q, r in zip(questions, rows, strict=True)}
    return found


def merged(
    corpus: datasets.DatasetDict, answers: dict[tuple[str, int], list[int]]
) -> dict[str, datasets.Dataset]:
    """The corpus with each answer behind its prompt."""
    splits: dict[str, datasets.Dataset] = {str(name): part for name, part in corpus.items()}
    for split in ANSWERED_SPLITS:
        columns: dict[str, list[Any]] = {name: list(corpus[split][name]) for name in FEATURES}
        for (name, row), answer in answers.items():
            if name == split:
                columns["input_ids"][row] = [*columns["input_ids"][row], *answer]
        splits[split] = datasets.Dataset.from_dict(columns, features=FEATURES)
    return splits
