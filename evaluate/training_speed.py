"""This trainer beside TRL's GKD trainer: one job, each run of it in a process of its own.

The job is full-length rows in a fixed order, forward KL against the live target, AdamW, on CPU;
further arms of this trainer read the target's signal from a cache. Each process settles its own
allocator as its users would have it; threads and environment are the same.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from distill.errors import UserError

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
    return [sys.executable, "-m", "distill.evaluate.training_arm", signal, str(cache)]


def trl(python: str) -> list[str]:
    """The command of TRL's arm, for an interpreter that has TRL.

    -P: modules that lie beside the script must not stand in for the standard library's.
    """
    return [python, "-P", str(TRL_ARM)]


def race(
    arms: Mapping[str, Sequence[str]], job: TrainingJob, folder: Path, repetitions: int
) -> dict[str, list[ArmRun]]:
    """Run every arm 2 · repetitions times, in A B B A order, in folders below `folder`.

    Raises:
        UserError: an arm fails; its last words are told.
    """
    found: dict[str, list[ArmRun]] = {name: [] for name in arms}
    for turn in range(2 * repetitions):
        for name in list(arms) if turn % 2 == 0 else reversed(list(arms)):
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
