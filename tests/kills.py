"""A job on a tiny pair, killed by seed in each of its stages in turn, and begun again.

    python -m tests.kills [KILLS] [SEED]

prints a line for each kill. What the job leaves must be what a job that nobody disturbed leaves:
the same corpus, answers, cached signal, weights, counts of decoding and registered versions.
"""

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

STAGES = ("prepare", "generate", "cache", "train", "measure", "judge", "register", "export")
CONTENT = (".arrow", ".safetensors", ".bin")
"""Files that hold nothing but content: no time, no place."""
OF_TIME = ("seconds",)
"""Ends of the names of columns that hold times."""
PATIENCE = 300.0


class Outcome(NamedTuple):
    """What became of a kill that fell `after` seconds in a stage; differs: names of results."""

    stage: str
    after: float
    same: bool
    differs: tuple[str, ...]


def arguments(place: Path, output: Path) -> list[str]:
    """The command line of the whole road, with one candidate and one k: no choice by time."""
    return [
        "distill", "target=folder", f"target.id={place / 'target'}", f"paths.output={output}",
        f"paths.cache={output / 'cache'}", f"hydra.run.dir={output / 'run'}",
        "target.dtype=float32", "trainer=cpu", "draft=scratch", "draft.hidden_size=32",
        "draft.num_hidden_layers=1", "data=jsonl", f"data.source.path={place / 'rows.jsonl'}",
        "data.train_rows=48", "data.validation_rows=4", "data.evaluation_rows=4",
        "data.max_length=96", "data.prompt_tokens=16", "generate.max_new_tokens=12",
        "generate.shard_rows=8", "signal=hidden", "trainer.tokens_per_batch=128",
        "trainer.tokens_per_step=128", "trainer.checkpoints=1", "trainer.resume_every_seconds=0",
        "budget.tokens=1000", "evaluate.num_draft_tokens=[2]", "evaluate.num_prompts=3",
        "evaluate.max_new_tokens=8",
    ]  # fmt: skip


def write_inputs(place: Path) -> None:
    """The tiny target and its rows."""
    from tests.pipelines.conftest import write_model

    write_model(place / "target")
    rows = [{"prompt": f"count to {number}", "domain": "math"} for number in range(400)]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def import_all() -> None:
    """Import what a job needs, so that its forks need not."""
    import alembic
    import lightning.pytorch
    import mlflow.tracking
    import sqlalchemy

    import distill.evaluate.report.page
    import distill.pipelines.road

    _ = alembic, lightning, mlflow, sqlalchemy, distill


def write_empty(place: Path) -> None:
    """`empty`, an output folder with nothing but MLflow's database, whose creation takes long."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    empty = place / "empty"
    empty.mkdir()
    SqlAlchemyStore(f"sqlite:///{empty / 'mlflow.db'}", str(empty / "mlruns"))


def started(place: Path, output: Path) -> int:
    """A process that runs the job: a fork of this one, so that nothing is imported anew."""
    if not output.exists():
        shutil.copytree(place / "empty", output)
    process = os.fork()
    if process:
        return process
    status = 70
    try:
        with (output / "said.txt").open("a") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        sys.argv = arguments(place, output)
        from distill.cli import main

        main()
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0)
    except BaseException:
        (output / "said.txt").open("a").write(traceback.format_exc())
    finally:
        os._exit(status)


def finished(process: int, output: Path) -> bool:
    """Whether it has ended. RuntimeError where it failed, with what it said last."""
    found, status = os.waitpid(process, os.WNOHANG)
    if found and status:
        said = (output / "said.txt").read_text()[-2000:]
        raise RuntimeError(f"a job ended with {os.waitstatus_to_exitcode(status)}: {said}")
    return bool(found)


def run(place: Path, output: Path) -> None:
    """Run the job to its end."""
    process = started(place, output)
    while not finished(process, output):
        time.sleep(0.05)


def entered(stage: str, output: Path) -> bool:
    """Whether the job has come to a stage; `register` begins where the judge ended."""
    before = output / "artifacts" / ("judge" if stage == "register" else stage)
    return any(before.glob("*/manifest.json")) if stage == "register" else before.is_dir()


def killed(place: Path, output: Path, stage: str, after: float) -> bool:
    """Kill the job `after` seconds in a stage; False where it ended first."""
    process = started(place, output)
    until = time.monotonic() + PATIENCE
    while not entered(stage, output):
        if finished(process, output) or time.monotonic() > until:
            raise RuntimeError(f"the job never came to {stage}")
        time.sleep(0.002)
    time.sleep(after)
    if finished(process, output):
        return False
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return True


def seconds(output: Path) -> dict[str, float]:
    """How long each stage took."""
    found = {
        path.parent.parent.name: json.loads(path.read_text())["seconds"]
        for path in output.glob("artifacts/*/*/manifest.json")
    }
    return {stage: max(found.get(stage, 0.5), 0.2) for stage in STAGES}


def results(output: Path) -> dict[str, str]:
    """Everything that a job leaves and that no clock decides, hashed."""
    from distill.artifacts import load
    from distill.integrity import damage

    found = dict(_contents(output))
    for path in sorted(output.glob("artifacts/*/*")):
        if not path.is_dir():
            continue
        broken = damage(path, load(path).manifest["files"])  # a UserError for a stage half done
        found[f"{path.parent.name} damaged"] = str(broken)
    # Not through MLflow: forks would inherit its connection to a file that is gone by then.
    with closing(sqlite3.connect(output / "mlflow.db")) as store:
        versions = store.execute("select name, version from model_versions order by 1, 2")
        found["registered versions"] = str(versions.fetchall())
    return found


def _contents(output: Path) -> Iterator[tuple[str, str]]:
    import pyarrow.parquet

    for path in sorted((output / "artifacts").rglob("*")):
        name = path.relative_to(output).as_posix()
        if path.suffix in CONTENT:
            yield name, hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.suffix == ".parquet":
            table = pyarrow.parquet.read_table(path)
            kept = [one for one in table.column_names if not one.endswith(OF_TIME)]
            yield name, hashlib.sha256(str(table.select(kept).to_pylist()).encode()).hexdigest()


def outcomes(kills: int, seed: int = 0) -> Iterator[Outcome]:
    """Kill as many jobs, one after the other, and compare what each leaves in the end."""
    import_all()
    lot = random.Random(seed)
    with tempfile.TemporaryDirectory() as scratch:
        place, output = Path(scratch), Path(scratch) / "outputs"
        write_inputs(place)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
            apart.submit(write_empty, place).result()  # it leaves threads, which no fork may have
        run(place, output)
        expected, lengths = results(output), seconds(output)
        for number in range(kills):
            stage = STAGES[(seed + number) % len(STAGES)]
            after, fell = 0.0, False
            while not fell:  # one that came too late is no kill
                shutil.rmtree(output)
                after = lot.uniform(0, lengths[stage])
                fell = killed(place, output, stage, after)
            run(place, output)
            got = results(output)
            differs = [name for name in {**expected, **got} if expected.get(name) != got.get(name)]
            yield Outcome(stage, after, not differs, tuple(differs))


def main() -> int:
    """Print a line for each kill; status 1 where a job did not end as it should."""
    kills, seed = (int(one) for one in (*sys.argv[1:], *("50", "0")[len(sys.argv) - 1 :]))
    same = 0
    for number, one in enumerate(outcomes(kills, seed), start=1):
        same += one.same
        said = "same" if one.same else f"DIFFERS: {', '.join(one.differs[:3])}"
        sys.stdout.write(f"{number:>3} {one.stage:<10}{one.after:>7.2f} s  {said}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{same} of {kills} identical\n")
    return int(same < kills)


if __name__ == "__main__":
    sys.exit(main())
