"""Peak memory of `prepare` and `generate` over many rows, each in a process of its own.

    python -m tests.memory [ROWS] [TOKENS_OF_AN_ANSWER]

prints for each stage how far the resident memory rises above what it was when the stage began, in
MB (10^6 bytes), and that per million tokens of what the stage wrote. Pages of files that are mapped
count as resident too, though the system takes them back when it needs them.
"""

import json
import multiprocessing
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace

MEGA = 1e6


def write_rows(path: Path, rows: int) -> None:
    """A prompt and an answer of about 170 bytes a line, no two alike."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            row = {
                "prompt": f"please count up to {number} and then tell me what you saw",
                "text": f"{number} comes after {number - 1}, before {number + 1}; nothing else.",
                "domain": ("math", "talk")[number % 2],
            }
            file.write(json.dumps(row) + "\n")


def prepare(place: Path, rows: int, _: int) -> int:
    """Tokenise the rows; tokens of the corpus."""
    from transformers import AutoTokenizer

    from distill.data.corpus import build_corpus, load_corpus, row_lengths
    from distill.data.sources import JsonlSource
    from distill.schema import DataConfig, TargetConfig

    data = DataConfig(source={}, train_rows=rows, max_length=512, prompt_tokens=64)
    (place / "corpus").mkdir()
    source = JsonlSource(str(place / "rows.jsonl"))
    source.check()
    source.fingerprint()
    tokenizer = AutoTokenizer.from_pretrained(place / "tokenizer")
    build_corpus(source, tokenizer, data, TargetConfig("folder", "x"), place / "corpus")
    return sum(int(row_lengths(part).sum()) for part in load_corpus(place / "corpus").values())


def generate(place: Path, rows: int, new_tokens: int) -> int:
    """Answer as many bare prompts, without a model; tokens of the answers."""
    import numpy as np

    from distill.data.answers import answer_prompts
    from distill.data.config import GenerateConfig
    from distill.data.corpus import SPLITS, load_corpus, save_corpus
    from distill.data.encode import Example

    def prompts(split: str) -> Iterator[Example]:
        for number in range({"train": rows, "validation": rows // 20, "evaluation": 4}[split]):
            ids = np.arange(1000, 1020 + number % 40, dtype=np.int32)
            yield Example(f"{split}{number}", "d", ids, len(ids))

    def decode(_, prompts: list[list[int]], **settings: object) -> SimpleNamespace:
        answer = list(range(1000, 1000 + new_tokens))
        return SimpleNamespace(tokens=[[token + len(p) for token in answer] for p in prompts])

    bare = place / "bare"
    if not bare.exists():  # made in a process of its own
        save_corpus({split: prompts(split) for split in SPLITS}, bare)
        return 0
    asked = GenerateConfig(max_new_tokens=new_tokens)
    counts = answer_prompts(None, load_corpus(bare), asked, [2], place / "answered", decode=decode)
    return counts["answer_tokens"]


def measured(stage: Callable[[Path, int, int], int], place: Path, *sizes: int) -> tuple[int, float]:
    """Tokens that the stage wrote, and its rise of resident memory in bytes."""
    import distill.data.answers
    import distill.data.corpus
    import distill.data.sources  # noqa: F401

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tokens = stage(place, *sizes)
    return tokens, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


def rises(place: Path, rows: int, new_tokens: int) -> dict[str, tuple[int, float]]:
    """Tokens and rise of each stage."""
    from tests.pipelines.conftest import write_tokenizer

    write_rows(place / "rows.jsonl", rows)
    write_tokenizer(place / "tokenizer")
    found = {}
    for name, stage in (("prepare", prepare), ("bare", generate), ("generate", generate)):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            found[name] = pool.submit(measured, stage, place, rows, new_tokens).result()
    del found["bare"]
    return found


def main() -> None:
    """Print the table."""
    rows, new_tokens = (int(one) for one in (*sys.argv[1:], *("200000", "50")[len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as place:
        for name, (tokens, rise) in rises(Path(place), rows, new_tokens).items():
            per_million = rise / MEGA / (tokens / MEGA)
            sys.stdout.write(
                f"{name:<10}{rows:>9} rows{tokens:>12} tokens{rise / MEGA:>9.0f} MB"
                f"{per_million:>8.1f} MB per million tokens\n"
            )


if __name__ == "__main__":
    main()
