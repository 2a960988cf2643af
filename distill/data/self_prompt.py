"""The target writes users' turns: sampled in shards, filtered, each unlike the others."""

import json
import logging
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedModel

from distill.data.sources.self_prompted import SelfPromptedSource
from distill.data.sources.splits import stable_hash
from distill.data.user_turn import UserTurn
from distill.errors import UserError
from distill.files import read_parquet, whole_file, write_text
from distill.progress import Progress
from distill.shards import numbered, share
from distill.speculative.decode import decode
from distill.speculative.sampling import Sampling

log = logging.getLogger(__name__)
SHARDS, PROMPTS = "shards", "prompts.jsonl"
PIECES = (f"{SHARDS}/*.parquet",)
"""Files that are made one by one: what is left of them after damage serves again."""
WORDS = 3
"""Words of a shingle."""
Shingle = tuple[str, ...]
REPLACEMENT = "\ufffd"
"""What a tokenizer writes for bytes that are no text."""


def shingles(text: str) -> frozenset[Shingle]:
    """Runs of `WORDS` words of the text, case, accents' spelling and punctuation put aside.

    A shorter text is one shingle. So is text without spaces: of that only repetitions are found.
    """
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())
    last = max(len(words) - WORDS, 0)
    return frozenset(tuple(words[n : n + WORDS]) for n in range(last + 1))


class Distinct:
    """Texts that are unlike one another, found exactly and without comparing every pair.

    It takes a text when its likeness to every text taken before is below `likeness`.

    Likeness of two texts: shingles in both / shingles in either (Jaccard; Broder 1997, "On the
    resemblance and containment of documents").
    """

    def __init__(self, likeness: float):
        self._likeness = likeness
        self._holders: dict[Shingle, list[int]] = defaultdict(list)
        self._sizes: list[int] = []

    def take(self, text: str) -> bool:
        """Whether the text is unlike all others; if so it is now one of them."""
        found = shingles(text)
        shared = Counter(number for one in found for number in self._holders.get(one, ()))
        for number, both in shared.items():
            if both >= self._likeness * (len(found) + self._sizes[number] - both):
                return False
        for one in found:
            self._holders[one].append(len(self._sizes))
        self._sizes.append(len(found))
        return True


@dataclass
class Selection:
    """The prompts that are kept, in the order of sampling, and why others were not."""

    settings: SelfPromptedSource
    kept: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._distinct = Distinct(self.settings.likeness)

    def add(self, words: str | None) -> None:
        """Keep a prompt or count the reason; None: its turn did not end as one should."""
        reason = self._unfit(words)
        if reason is None and words is not None and self._distinct.take(words):
            self.kept.append(words)
        else:
            self.dropped[reason or "like an earlier one"] += 1

    def _unfit(self, words: str | None) -> str | None:
        if words is None:
            return "unfinished"
        if len(words) < self.settings.min_characters:
            return "too short"
        if len(words) > self.settings.max_characters:
            return "too long"
        if REPLACEMENT in words or not all(c.isprintable() or c in "\n\t" for c in words):
            return "not printable"
        return None


def write_prompts(
    model: PreTrainedModel,
    turn: UserTurn,
    settings: SelfPromptedSource,
    folder: Path,
    *,
    vocabulary_size: int | None = None,
    seed: int = 0,
    decode: Callable[..., Any] = decode,
) -> dict[str, Any]:
    """Write `folder/prompts.jsonl`: `settings.num_prompts` rows with id, domain and prompt.

    Samples lie in `folder/shards` as they are drawn; a second call draws those that are missing,
    and the result is the same. Sample n has a random stream of its own. vocabulary_size: real ids
    of the target; a padded head has more rows.

    Returns:
        prompts, sampled, shards, and the number dropped for each reason.

    Raises:
        UserError: too few of the samples can be used.
    """
    sample = partial(decode, vocabulary_size=vocabulary_size)
    most = -(-settings.tries * settings.num_prompts // settings.shard_rows)
    paths = numbered(folder / SHARDS, most, "parquet")
    selection, shards = Selection(settings), 0
    with Progress("self-prompting", settings.num_prompts) as progress:

        def make(number: int) -> None:
            tokens: list[list[int]] = []
            first = number * settings.shard_rows
            for batch in _samples(model, turn, settings, first, seed, sample):
                progress.advance(0, sum(map(len, batch)))  # what is kept shows later
                tokens += batch
            _write_shard(paths[number], tokens)

        while len(selection.kept) < settings.num_prompts:
            if shards == most:
                raise _too_few(selection, shards * settings.shard_rows)
            share(paths[: shards + 1], make)
            for sampled in read_parquet(paths[shards])["tokens"].to_pylist():
                selection.add(turn.words(sampled))
            progress.advance(min(len(selection.kept), settings.num_prompts) - progress.done)
            shards += 1
    rows = [
        {"id": f"self-{number:06d}", "domain": "self_prompted", "prompt": words}
        for number, words in enumerate(selection.kept[: settings.num_prompts])
    ]
    write_text(folder / PROMPTS, "".join(json.dumps(row) + "\n" for row in rows))
    return {
        "prompts": len(rows),
        "sampled": shards * settings.shard_rows,
        "shards": shards,
        "dropped": dict(selection.dropped),
    }


def _samples(
    model: PreTrainedModel,
    turn: UserTurn,
    settings: SelfPromptedSource,
    first: int,
    seed: int,
    decode: Callable[..., Any],
) -> Iterator[list[list[int]]]:
    """The tokens of samples `first` to `first + shard_rows`, batch by batch."""
    numbers = range(first, first + settings.shard_rows)
    for start in range(0, len(numbers), settings.batch_size):
        batch = numbers[start : start + settings.batch_size]
        yield decode(
            model,
            [list(turn.opening)] * len(batch),
            sampling=Sampling(temperature=settings.temperature, top_p=settings.top_p),
            max_new_tokens=settings.max_new_tokens,
            eos_token_ids=tuple(sorted(turn.ends)),
            seed=seed,
            row_ids=[stable_hash("self prompt", number) for number in batch],
        ).tokens


def _write_shard(path: Path, tokens: list[list[int]]) -> None:
    with whole_file(path) as partial:
        pq.write_table(pa.table({"tokens": pa.array(tokens, pa.list_(pa.int32()))}), partial)


def _too_few(selection: Selection, sampled: int) -> UserError:
    reasons = ", ".join(f"{number} {reason}" for reason, number in selection.dropped.most_common())
    return UserError(
        f"data=self_prompted: {len(selection.kept)} of {sampled} samples can be used and "
        f"{selection.settings.num_prompts} are asked for (dropped: {reasons}): lower "
        "data.source.num_prompts, or raise data.source.tries, max_new_tokens or likeness"
    )
