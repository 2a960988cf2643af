"""Bad inputs by seed: rows, configurations, and the files of models and artifacts.

    python -m tests.fuzz [INPUTS_OF_A_KIND] [SEED]

tries many and prints a table of the kinds. An input ends well when it is used, is one line (a
`UserError`, or an error of composition that `explain` makes one line of), or is a counted skip.
"""

import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module

from distill import artifacts, schema
from distill.cli import OmegaConfOrHydra, check_groups, explain, typed
from distill.data.sources import JsonlSource
from distill.errors import UserError
from distill.evaluate.prompts import PromptFile
from distill.models.code import check_code
from distill.models.folder import chat_template, tensor_shapes
from distill.models.source import check_model_folder
from distill.models.target import context_length, eos_token_ids
from distill.models.vocabulary import shared_vocabulary
from distill.text import one_line

USED, REFUSED, SKIPPED = "used", "refused in one line", "skipped and counted"
ODD: list[Any] = [
    None, True, 0, -1, 2**31, 2**64, 10**400, 1e308, float("nan"), float("inf"), "", " ", "\0",
    "\ud800", "[/INST]", "../../x", "/", "~", "${x}", "a=b@c", "日本", "x" * 5000, [], [[]], [None],
    {}, {"_target_": "os.system"}, {"a": {"b": {}}}, [{"role": "user"}], ["a", 1, None],
]  # fmt: skip
ROW_KEYS = ("prompt", "text", "messages", "domain", "id", "turns", "tools", "role", "content")
CONFIG_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")


def odd(random: random.Random, depth: int = 2) -> Any:
    """Any value that JSON can hold, and some that it should not."""
    if depth and random.random() < 0.3:
        keys = random.choices(ROW_KEYS, k=random.randint(1, 3))
        return random.choice(
            [{key: odd(random, depth - 1) for key in keys}, [odd(random, depth - 1)]]
        )
    return random.choice(ODD)


def broken(raw: bytes, random: random.Random) -> bytes:
    """Bytes cut short, zeroed, changed, doubled, or others in their place."""
    at = random.randrange(len(raw) + 1)
    flipped = bytearray(raw or b"x")
    for _ in range(random.randint(1, 8)):
        flipped[random.randrange(len(flipped))] = random.randrange(256)
    return random.choice(
        [raw[:at], b"", raw[:at] + b"\0" * (len(raw) - at), bytes(flipped), raw + raw,
         raw[:at] + b"\xff\xfe" + raw[at:], random.randbytes(40), b"[" * 3000, b"null", b"[]"]
    )  # fmt: skip


def bad_rows(place: Path, random: random.Random) -> str:
    """A file of one good row and some bad lines, read as data and as prompts to evaluate."""
    lines = [b'{"prompt": "good"}']
    for _ in range(random.randint(1, 4)):
        row = {random.choice(ROW_KEYS): odd(random) for _ in range(random.randint(1, 3))}
        raw = json.dumps(row).encode()
        lines.append(broken(raw, random).replace(b"\n", b" ") if random.random() < 0.5 else raw)
    path = place / "rows.jsonl"
    path.write_bytes(b"\n".join(random.sample(lines, len(lines))))
    source = JsonlSource(str(path), validation_fraction=0, evaluation_fraction=0)
    used = len(list(source.rows()))
    skipped = [one for one in source.problems if one.outcome == "skipped"]
    PromptFile.read(path).domains()
    wanted = sum(bool(line.strip()) for line in path.read_bytes().split(b"\n"))
    assert used + len(skipped) >= wanted, "a row is neither used nor counted"
    for problem in source.problems:
        assert len(str(problem).splitlines()) == 1, "a problem of several lines"
    return SKIPPED if skipped else USED


def bad_override(place: Path, random: random.Random) -> str:
    """One key of the schema with an odd value, typed as a user might."""
    names = sorted(_keys(schema.Config()))
    name = random.choice(names)
    if random.random() < 0.2:
        name = name[:-1] or "x"  # a key that is not there
    value = random.choice(
        ["-1", "0", "1e99", "nan", "inf", "''", "[]", "{}", "[1,1]", "[-1]", "x", "null", "a/b",
         "../x", "{_target_:os.system}", "[{a:1}]", "1.5", "true", "99999999999999999999",
         "'\\x1b'", "$", "{", "[", "'", "a:b", "a b", "%", "\ud83d\ude42"]
    )  # fmt: skip
    override = f"{random.choice(['', '', '+', '++'])}{name}={value}"
    check_groups([override])
    typed(compose("config", [override]))
    return USED


def bad_model(place: Path, random: random.Random) -> str:
    """A model folder with one file broken, or a setting of one of its files odd."""
    folder = place / "model"
    name = random.choice([*CONFIG_FILES, *CONFIG_FILES, "model.safetensors"])
    path = folder / name
    raw = path.read_bytes()
    found = None if name.endswith("safetensors") else json.loads(raw)
    if found and random.random() < 0.6:
        found[random.choice([*found, "eos_token_id", "text_config"])] = odd(random)
        path.write_text(json.dumps(found))
    else:
        path.write_bytes(broken(raw, random))
    try:
        check_model_folder(folder, "target")
        check_code(folder, "target")
        shared_vocabulary(folder, None)
        eos_token_ids(folder)
        context_length(folder)
        tensor_shapes(folder)
        chat_template(folder)
    finally:
        path.write_bytes(raw)
    return USED


def bad_artifact(place: Path, random: random.Random) -> str:
    """A finished stage with a broken manifest; the stage's file is made again or found."""
    root = place / "outputs"
    shutil.rmtree(root, ignore_errors=True)

    def make() -> artifacts.Artifact:
        return artifacts.build("stage", root, {"a": 1}, [], produce)

    def produce(folder: Path) -> dict[str, Any]:
        (folder / "data.bin").write_bytes(b"whole" * 20)
        return {"rows": 1}

    path = make().path
    victim = path / random.choice(["manifest.json", "data.bin"])
    raw = victim.read_bytes()
    if victim.suffix == ".json" and random.random() < 0.5:
        found = json.loads(raw)
        found[random.choice([*found])] = odd(random)
        victim.write_text(json.dumps(found))
    else:
        victim.write_bytes(broken(raw, random))
    again = make()
    assert (again.path / "data.bin").read_bytes() == b"whole" * 20, "a damaged file was used"
    return USED


KINDS: dict[str, Callable[[Path, random.Random], str]] = {
    "rows of a file": bad_rows,
    "configuration": bad_override,
    "files of a model": bad_model,
    "files of an artifact": bad_artifact,
}


def attempt(kind: str, place: Path, seed: int) -> str:
    """How an input ends: one of the three words, or, in brackets, what went wrong."""
    try:
        return KINDS[kind](place, random.Random(f"{kind} {seed}"))
    except UserError as error:
        return REFUSED if one_line(str(error)) else "(a refusal that says nothing)"
    except OmegaConfOrHydra as error:
        return REFUSED if one_line(explain(error)) else "(a refusal that says nothing)"
    except Exception as error:
        return f"({type(error).__name__}: {one_line(str(error))[:90]}; seed {seed})"


def table(model: Path, inputs: int, seed: int = 0) -> dict[str, Counter[str]]:
    """Ends by kind. model: a whole model folder, which is copied."""
    ends: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    schema.register()
    with (
        tempfile.TemporaryDirectory() as scratch,
        initialize_config_module("distill.conf", version_base="1.3"),
    ):
        place = Path(scratch)
        shutil.copytree(model, place / "model")
        for kind, counted in ends.items():
            counted.update(attempt(kind, place, seed + number) for number in range(inputs))
    return ends


def _keys(config: Any, prefix: str = "") -> list[str]:
    found = []
    for name, value in vars(config).items():
        inner = hasattr(value, "__dataclass_fields__")
        found += _keys(value, f"{prefix}{name}.") if inner else [f"{prefix}{name}"]
    return found


def main() -> int:
    """Print the table; status 1 where an input ended otherwise."""
    from tests.pipelines.conftest import write_model

    inputs, seed = (int(one) for one in (*sys.argv[1:], *("200", "0")[len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as scratch:
        ends = table(write_model(Path(scratch) / "model"), inputs, seed)
    bad = 0
    for kind, counted in ends.items():
        for end, number in counted.most_common():
            sys.stdout.write(f"{kind:<22}{number:>6}  {end}\n")
            bad += number if end.startswith("(") else 0
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
