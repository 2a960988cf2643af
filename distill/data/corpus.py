"""The corpus: a source tokenized once, as an Arrow dataset with three splits."""

import logging
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as compute
from transformers import PreTrainedTokenizerBase

from distill.data.chat import with_system
from distill.data.config import DataConfig
from distill.data.encode import Encoder, Example
from distill.data.sources.rows import CUT, Chat, Problem, Row, Source
from distill.data.sources.splits import stable_hash
from distill.errors import UserError
from distill.files import read_json, whole_folder, write_json
from distill.models.config import TargetConfig
from distill.progress import Progress

SPLITS = ("train", "validation", "evaluation")
FEATURES = datasets.Features(
    {
        "id": datasets.Value("string"),
        "domain": datasets.Value("string"),
        "input_ids": datasets.List(datasets.Value("int32")),
        "prompt_length": datasets.Value("int32"),
    }
)
DATASET, TURNS, GROUPS = "dataset", "turns.json", "groups.json"
BATCH_ROWS = 1000
"""So many rows are in memory at once."""
SHOWN = 5
"""So many reasons for dropped rows are shown; `problems.json` holds all."""

log = logging.getLogger(__name__)


def build_corpus(
    source: Source,
    tokenizer: PreTrainedTokenizerBase,
    data: DataConfig,
    target: TargetConfig,
    folder: Path,
    *,
    eos_token_ids: Sequence[int] = (),
    seed: int = 0,
) -> dict[str, Any]:
    """Write `dataset/` and `problems.json` into `folder`; returns the counts of both.

    eos_token_ids: what ends the target's text; an answer is supervised up to the first of them.
    seed: which training rows a limit takes; held-out rows do not depend on it, so that runs with
    different seeds stay comparable.

    Raises:
        UserError: a split that is wanted stays empty.
    """
    encoder = Encoder(tokenizer, data, target, eos_token_ids)
    rows: dict[str, list[Row]] = {split: [] for split in SPLITS}
    with Progress("reading rows") as progress:  # a source may fetch them first
        for row in progress.each(source.rows()):
            rows[row.split].append(row)
    limits = (data.train_rows, data.validation_rows, data.evaluation_rows)

    def encoded(split: str, limit: int | None) -> Iterator[Example]:
        found = 0
        with Progress(f"tokenizing {split}", limit) as progress:
            for example in progress.each(islice(examples(rows[split], encoder, seed), limit)):
                found += 1
                yield example
        if not found and limit != 0:
            raise UserError(empty_split(split, len(rows[split]), encoder.dropped))

    save_corpus({s: encoded(s, limit) for s, limit in zip(SPLITS, limits, strict=True)}, folder)
    corpus = load_corpus(folder)
    report(source.problems, encoder.dropped)
    write_problems(source.problems, encoder.dropped, folder)
    held_out = set(corpus["evaluation"]["id"])
    write_turns(rows["evaluation"], held_out, target, folder)
    write_groups(rows["evaluation"], held_out, folder)
    return counts(corpus, source.problems, encoder.dropped)


def examples(rows: list[Row], encoder: Encoder, seed: int) -> Iterator[Example]:
    """Examples of all parts of a mixture by their weights; see `examples_of_part`.

    Training ends with the first part that runs dry; a held-out split takes what the others have.
    """
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(row.part, []).append(row)
    streams = [examples_of_part(part, encoder, seed) for part in parts.values()]
    weights = [part[0].weight for part in parts.values()]
    return in_shares(streams, weights, to_the_end=bool(rows) and rows[0].split != "train")


def in_shares(
    streams: list[Iterator[Example]], weights: list[float], to_the_end: bool
) -> Iterator[Example]:
    """Yield always from the stream that is furthest behind its weight, the first of equals.

    to_the_end: go on with the others when one runs dry.
    """
    taken = dict.fromkeys(range(len(streams)), 0)
    while taken:
        due = min(taken, key=lambda n: taken[n] / weights[n])
        found = next(streams[due], None)
        if found is not None:
            taken[due] += 1
            yield found
        elif to_the_end:
            del taken[due]
        else:
            return


def examples_of_part(rows: list[Row], encoder: Encoder, seed: int) -> Iterator[Example]:
    """Examples in an order fixed by hash, so that a limit takes a fair part of the source.

    Training rows come whole, one after the other. Held-out ones go round the groups (modules),
    one example of each at a time, so that few examples still stand for many groups.
    """
    train = bool(rows) and rows[0].split == "train"
    order = seed if train else 0
    ordered = sorted(rows, key=lambda row: (stable_hash(order, row.id), row.id))
    if train:
        return chain.from_iterable(map(encoder.examples, ordered))
    groups: dict[str, list[Iterator[Example]]] = {}
    for row in ordered:
        groups.setdefault(row.group, []).append(encoder.examples(row))
    return round_robin(round_robin(documents) for documents in groups.values())


def round_robin(iterators: Iterable[Iterator[Example]]) -> Iterator[Example]:
    """Yield one example of each iterator in turn until all have run dry."""
    waiting = deque(iterators)
    while waiting:
        current = waiting.popleft()
        found = next(current, None)
        if found is not None:
            yield found
            waiting.append(current)


def empty_split(split: str, rows: int, dropped: Counter[str]) -> str:
    """Say why none of a split's rows is left, and what to do."""
    reasons = "; ".join(f"{number} dropped: {reason}" for reason, number in dropped.items())
    return (
        f"No row is left for {split} out of {rows} ({reasons or 'the source gave none'}): give the "
        f"source more rows, a larger data.max_length, or set data.{split}_rows=0."
    )


def save_corpus(splits: Mapping[str, Iterable[Example]], folder: Path) -> None:
    """Write `folder/dataset`, whole or not at all; the examples are taken one by one."""
    datasets.disable_progress_bars()
    with whole_folder(folder / DATASET) as partial:
        stored = {split: partial / f"{split}.stream" for split in splits}
        for split, path in stored.items():
            _stream(splits[split], path)
        mapped = {split: datasets.Dataset.from_file(str(path)) for split, path in stored.items()}
        # One file a split: `datasets` would write none for an empty split, and then not load it.
        one_file: dict[str, int] = dict.fromkeys(splits, 1)
        datasets.DatasetDict(**mapped).save_to_disk(partial, num_shards=one_file)  # type: ignore[arg-type]
        for path in stored.values():
            path.unlink()


def _stream(found: Iterable[Example], path: Path) -> None:
    """Write examples to a file in Arrow's stream format, which `datasets` maps."""
    schema, waiting = FEATURES.arrow_schema, iter(found)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        while batch := list(islice(waiting, BATCH_ROWS)):
            columns = [[getattr(example, name) for example in batch] for name in FEATURES]
            arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def load_corpus(folder: Path) -> datasets.DatasetDict:
    """Open the splits, memory-mapped, with the columns id, domain, input_ids, prompt_length.

    Raises:
        UserError: the folder holds no corpus.
    """
    if not (folder / DATASET).is_dir():
        raise UserError(f"{folder} holds no corpus: run pipeline=prepare first.")
    return datasets.DatasetDict.load_from_disk(folder / DATASET)


def held_out_prompts(folder: Path, count: int) -> list[list[int]]:
    """Return the first `count` evaluation prompts as token ids.

    Raises:
        UserError: there are fewer.
    """
    rows = load_corpus(folder)["evaluation"]
    if len(rows) < count:
        raise UserError(
            f"the data has {len(rows)} evaluation prompts and {count} are asked for: raise "
            "data.evaluation_rows, or lower what asks"
        )
    rows = rows.select(range(count))
    lengths = zip(rows["input_ids"], rows["prompt_length"], strict=True)
    return [list(tokens[:length]) for tokens, length in lengths]


def report(problems: list[Problem], dropped: Counter[str]) -> None:
    """A warning for rows that were skipped or mended, with the first; one for each other thing."""
    for outcome in ("skipped", "repaired"):
        found = [problem for problem in problems if problem.outcome == outcome]
        if found:
            log.warning("prepare: rows %s: %d; the first: %s", outcome, len(found), found[0])
    for problem in problems:
        if problem.outcome == "kept":
            log.warning("prepare: %s", problem)
    for reason, number in dropped.most_common(SHOWN):
        log.warning("prepare: rows dropped: %d: %s", number, reason)


def write_problems(problems: list[Problem], dropped: Counter[str], folder: Path) -> None:
    """Write `problems.json`: what was wrong with rows of the source, and how many were dropped."""
    content = {"rows": [asdict(problem) for problem in problems], "dropped": dict(dropped)}
    write_json(folder / "problems.json", content)


def write_turns(
    rows: Sequence[Row], kept: Collection[str], target: TargetConfig, folder: Path
) -> None:
    """`turns.json`, only where an evaluation row goes on: id → messages and follow_ups.

    kept: ids of the rows that the corpus holds.
    """
    turns = {
        row.id: {
            "messages": with_system(content.messages, target.system_prompt),
            "follow_ups": content.follow_ups,
        }
        for row in rows
        if row.id in kept and isinstance(content := row.content, Chat) and content.follow_ups
    }
    if turns:
        write_json(folder / TURNS, turns)


def load_turns(folder: Path) -> dict[str, dict[str, Any]]:
    """The user turns that follow an evaluation row's prompt, by row id; empty where none does."""
    path = folder / TURNS
    return read_json(path) if path.exists() else {}


def write_groups(rows: Sequence[Row], kept: Collection[str], folder: Path) -> None:
    """`groups.json`: what each example of the evaluation split was cut from, by its id."""
    groups = {row.id: row.group for row in rows}
    found = {id: groups.get(id) or groups[CUT.sub("", id)] for id in sorted(kept)}
    write_json(folder / GROUPS, found)


def load_groups(folder: Path) -> dict[str, str]:
    """What the evaluation examples were cut from, by id; empty for a corpus older than groups."""
    path = folder / GROUPS
    return read_json(path) if path.exists() else {}


def row_lengths(split: datasets.Dataset) -> np.ndarray:
    """Tokens of each row [rows], without reading the tokens."""
    table = split.with_format("arrow")[:]
    return compute.list_value_length(table["input_ids"]).to_numpy().astype(np.int64)  # type: ignore[attr-defined]


def token_counts(split: datasets.Dataset, vocabulary_size: int) -> np.ndarray:
    """How often each id [vocabulary_size] stands in the split."""
    column = split.with_format("arrow")[:]["input_ids"]  # type: ignore[index]
    tokens = np.concatenate([chunk.flatten().to_numpy() for chunk in column.chunks])
    return np.bincount(tokens, minlength=vocabulary_size)


def supervised_counts(split: datasets.Dataset) -> np.ndarray:
    """Supervised tokens of each row [rows]: those at positions >= max(prompt_length, 1)."""
    table = split.with_format("arrow")[:]
    begins = np.maximum(table["prompt_length"].to_numpy().astype(np.int64), 1)  # type: ignore[attr-defined]
    return np.maximum(row_lengths(split) - begins, 0)


def unanswered(split: datasets.Dataset) -> np.ndarray:
    """Indices of the rows that hold a prompt and nothing to learn."""
    return np.flatnonzero(supervised_counts(split) == 0)


def counts(
    corpus: datasets.DatasetDict, problems: list[Problem], dropped: Counter[str]
) -> dict[str, Any]:
    """Rows per split, tokens of training, rows to answer, and how many rows were not used."""
    train = corpus["train"]
    learnt = (train, corpus["validation"])
    return {
        **{f"{split}_rows": len(corpus[split]) for split in SPLITS},
        "train_tokens": int(row_lengths(train).sum()),
        "train_supervised_tokens": int(supervised_counts(train).sum()),
        "unanswered": sum(len(unanswered(split)) for split in learnt),
        "skipped_rows": sum(problem.outcome == "skipped" for problem in problems),
        "repaired_rows": sum(problem.outcome == "repaired" for problem in problems),
        "dropped_rows": dropped.total(),
    }
