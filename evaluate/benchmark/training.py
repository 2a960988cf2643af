"""This trainer beside TRL's GKD trainer: one job, each run of it in a process of its own.

The job is full-length rows in a fixed order, forward KL against the live target, AdamW, on CPU;
further arms of this trainer read the target's signal from a cache. Each process settles its own
allocator as its users would have it; threads and environment are the same.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import datasets
import torch
from safetensors.torch import load_file

from distill.data.corpus import FEATURES
from distill.errors import UserError
from distill.evaluate.interleave import there_and_back
from distill.files import read_json, write_json
from distill.teacher.cache import cache_signals
from distill.teacher.codecs import CODECS
from distill.teacher.live import LiveTeacher

POLL_SECONDS = 0.05
TRL_ARM = Path(__file__).with_name("trl_arm.py")


@dataclass(frozen=True)
class TrainingJob:
    """What every arm trains. Folders of models; rows: a JSON file of equally long lists of ids.

    Rows are taken in order, again from the first when they run out. The first `warmup` steps are
    not timed; `steps` are, and one more tells when the last of them ends.
    """

    target: str
    draft: str
    rows: str
    rows_per_batch: int
    batches_per_step: int
    warmup: int
    steps: int
    half: bool
    vocabulary_size: int
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    gradient_clip: float = 1.0

    @property
    def all_steps(self) -> int:
        return self.warmup + self.steps + 1

    @property
    def all_rows(self) -> int:
        return self.all_steps * self.batches_per_step * self.rows_per_batch


@dataclass(frozen=True)
class ArmRun:
    """tokens_per_second: supervised. peak_bytes: most memory the process ever had resident.

    versions: of the packages that it ran.
    """

    tokens_per_second: float
    peak_bytes: int
    versions: dict[str, str]


def here(signal: str = "live", cache: Path | None = None) -> list[str]:
    """The command of this trainer's arm, with the target beside it or its signal from `cache`."""
    return [sys.executable, "-m", "distill.evaluate.benchmark.training_arm", signal, str(cache)]


def trl(python: str) -> list[str]:
    """The command of TRL's arm, for an interpreter that has TRL.

    -P: modules that lie beside the script must not stand in for the standard library's.
    """
    return [python, "-P", str(TRL_ARM)]


def full_rows(split: datasets.Dataset, length: int) -> list[list[int]]:
    """Rows of exactly `length` tokens, so that every batch is the same work for every arm."""
    found = [list(ids) for ids in split["input_ids"] if len(ids) == length]
    if not found:
        raise UserError(
            f"no training row has data.max_length={length} tokens: lower it, or use data=code"
        )
    return found


def prepare_arms(
    job: TrainingJob,
    rows: Sequence[list[int]],
    teacher: LiveTeacher,
    save_draft: Callable[[Path], None],
    place: Path,
    *,
    cached: Sequence[str],
    trl_python: str | None,
) -> dict[str, list[str]]:
    """Write what the arms read into the folder `place`; return the command of each by its name.

    The arms are this trainer live, with each `cached` signal, and TRL's where `trl_python` names
    an interpreter that has it. The caller lets go of its models before `run_arms`.
    """
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    save_draft(Path(job.draft))
    # No more than is trained on: as lists of Python numbers a corpus takes more than a draft.
    write_json(Path(job.rows), rows[: job.all_rows])
    arms = {"live": here()}
    for name in cached:
        arms[name] = here(name, _cached(teacher, job, name, place))
    if trl_python is not None:
        arms["trl"] = trl(str(Path(trl_python).expanduser()))
    return arms


def run_arms(
    arms: Mapping[str, Sequence[str]], job: TrainingJob, place: Path, repetitions: int
) -> dict[str, Any]:
    """Rates, peaks and versions of every arm, and whether ours and TRL's do the same work.

    `place` is removed at the end; of a run that failed it stays, with what the arms said.
    """
    runs = alternate(arms, job, place / "runs", repetitions)
    found = {
        name: {
            "rates": [run.tokens_per_second for run in each],
            "peak_bytes": [run.peak_bytes for run in each],
            "versions": each[0].versions,
        }
        for name, each in runs.items()
    }
    ours, theirs = place / "runs" / "live-0", place / "runs" / "trl-0"
    same = same_update(job, ours, theirs) if "trl" in arms else None
    shutil.rmtree(place)
    return {"arms": found, "same_update": same}


def _cached(teacher: LiveTeacher, job: TrainingJob, name: str, place: Path) -> Path:
    """The target's signal for the job's rows, as `pipeline=cache` would leave it."""
    folder = place / f"cache-{name}"
    folder.mkdir()
    rows = read_json(Path(job.rows))
    columns = {
        "id": [str(n) for n in range(len(rows))],
        "domain": [""] * len(rows),
        "input_ids": rows,
        "prompt_length": [0] * len(rows),
    }
    split = datasets.Dataset.from_dict(columns, features=FEATURES)
    cache_signals(
        teacher,
        datasets.DatasetDict({"train": split, "validation": split.select([0])}),
        CODECS[name](),
        folder,
        shard_tokens=len(rows) * len(rows[0]),
        tokens_per_batch=job.rows_per_batch * len(rows[0]),
    )
    return folder


def alternate(
    arms: Mapping[str, Sequence[str]], job: TrainingJob, folder: Path, repetitions: int
) -> dict[str, list[ArmRun]]:
    """Run every arm 2 · repetitions times, in A B B A order, in folders below `folder`.

    Raises:
        UserError: an arm fails; its last words are told.
    """
    found: dict[str, list[ArmRun]] = {name: [] for name in arms}
    for turn, name in there_and_back(list(arms), 2 * repetitions):
        found[name].append(_run(name, arms[name], job, folder / f"{name}-{turn}"))
    return found


def same_update(job: TrainingJob, one: Path, other: Path) -> float:
    """Cosine of what two arms changed in the draft: near 1 when they did the same work."""
    start = load_file(Path(job.draft) / "model.safetensors")
    changes = []
    for folder in (one, other):
        end = load_file(trained(folder))
        changes.append(torch.cat([(end[name] - start[name]).double().flatten() for name in start]))
    return torch.nn.functional.cosine_similarity(changes[0], changes[1], dim=0).item()


def trained(folder: Path) -> Path:
    """The weights that an arm left in its folder."""
    (path,) = folder.rglob("model.safetensors")
    return path


def _run(name: str, command: Sequence[str], job: TrainingJob, folder: Path) -> ArmRun:
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps(asdict(job)), encoding="utf-8")
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [*command, str(folder)], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        peak = _watch(process)
    if process.returncode:
        said = (folder / "log.txt").read_text(errors="replace").strip().splitlines()
        raise UserError(
            f"the benchmark's arm {name!r} failed: {said[-1] if said else 'it said nothing'} "
            f"(all of it: {folder / 'log.txt'})"
        )
    told = json.loads((folder / "run.json").read_text())
    seconds = told["starts"][job.warmup + job.steps] - told["starts"][job.warmup]
    return ArmRun(_tokens(job) / seconds, peak, told["versions"])


def _tokens(job: TrainingJob) -> int:
    """Supervised tokens of the timed steps: all of a row but its first."""
    length = len(json.loads(Path(job.rows).read_text())[0])
    return job.steps * job.batches_per_step * job.rows_per_batch * (length - 1)


def _watch(process: "subprocess.Popen[Any]") -> int:
    """Peak resident bytes of a process, once it has ended.

    The kernel keeps the high-water mark, so a peak between two looks is not missed. (getrusage
    would count what the process was forked from, too.)
    """
    peak = 0
    while process.poll() is None:
        peak = max(peak, high_water(process.pid))
        time.sleep(POLL_SECONDS)
    return peak


def high_water(pid: int) -> int:
    """Peak resident bytes of a process so far; 0 once it has ended. UserError outside Linux."""
    status = Path(f"/proc/{pid}/status")
    if not Path("/proc/self/status").exists():
        raise UserError("what=training reads peak memory from /proc: run it on Linux")
    try:
        lines = status.read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return 1024 * found[0] if found else 0
