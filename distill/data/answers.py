"""The target answers the prompts that have no text, by plain decoding, in resumable shards."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedModel

from distill.data.config import GenerateConfig
from distill.data.corpus import BATCH_ROWS, DATASET, SPLITS, row_lengths, save_corpus, unanswered
from distill.data.encode import Example
from distill.data.sources.splits import stable_hash
from distill.errors import UserError
from distill.files import read_parquet, whole_file
from distill.locks import locked
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


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt of `length` tokens to answer: row `row` of `split`."""

    split: str
    row: int
    id: str
    length: int

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
            [list(corpus[question.split][question.row]["input_ids"]) for question in questions],
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
    found = read_shards(corpus, shards, paths)
    # Two processes may end at the same moment.
    with locked(folder / "merge.lock", "joining the answers"):
        if not (folder / DATASET).is_dir():
            save_corpus({split: merged(corpus, split, found) for split in SPLITS}, folder)
    return {
        "answered_rows": found.rows,
        "answer_tokens": len(found.tokens),
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
    questions: list[Question] = []
    for split in ANSWERED_SPLITS:
        rows = unanswered(corpus[split])
        ids = corpus[split].select_columns("id").with_format("arrow")[:]["id"].take(pa.array(rows))  # type: ignore[index]
        lengths = row_lengths(corpus[split])[rows].tolist()
        for row, name, length in zip(rows.tolist(), ids.to_pylist(), lengths, strict=True):
            questions.append(Question(split, row, name, length))
    questions.sort(key=lambda question: (-question.length, question.id))
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


@dataclass(frozen=True)
class Answers:
    """All answers. tokens: one after the other [tokens].

    places: split → where each of its rows' answers lies, (start, end) into tokens [rows, 2]; both
    are 0 for a row that was not asked.
    """

    tokens: np.ndarray
    places: dict[str, np.ndarray]
    rows: int


def read_shards(
    corpus: datasets.DatasetDict, shards: list[list[Question]], paths: list[Path]
) -> Answers:
    """The answers of all shards.

    Raises:
        UserError: a shard has other rows, so that it would answer the wrong prompts.
    """
    places = {split: np.zeros((len(corpus[split]), 2), dtype=np.int64) for split in ANSWERED_SPLITS}
    tokens = array("i")  # it grows in place
    for questions, path in zip(shards, paths, strict=True):
        table = read_parquet(path)
        rows = zip(table["split"].to_pylist(), table["id"].to_pylist(), strict=True)
        if list(rows) != [(question.split, question.id) for question in questions]:
            raise UserError(f"{path} answers other rows than this corpus has: delete its folder.")
        answers = table["answer"].combine_chunks()
        lengths = answers.value_lengths().to_numpy()
        ends = len(tokens) + np.cumsum(lengths)
        tokens.frombytes(answers.flatten().to_numpy().tobytes())
        for question, length, end in zip(questions, lengths, ends, strict=True):
            places[question.split][question.row] = end - length, end
    return Answers(np.frombuffer(tokens, dtype=np.int32), places, sum(map(len, shards)))


def merged(corpus: datasets.DatasetDict, split: str, answers: Answers) -> Iterator[Example]:
    """The rows of a split, each with its answer behind its prompt."""
    places = answers.places.get(split, np.zeros((len(corpus[split]), 2), dtype=np.int64))
    row = 0
    parts: Any = corpus[split].with_format("numpy").iter(BATCH_ROWS)
    for batch in parts:
        for name, domain, ids, prompt_length in zip(*batch.values(), strict=True):
            start, end = places[row]
            tokens = np.concatenate((ids, answers.tokens[start:end]))
            yield Example(str(name), str(domain), tokens, int(prompt_length))
            row += 1
