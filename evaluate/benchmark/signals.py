"""What a cached signal costs in the draft's gradient, against the exact one on the same batches.

B rows, S tokens a row, T supervised tokens of a batch, P parameters of the draft.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.data.datamodule import Batch
from distill.errors import UserError
from distill.losses.dense import HiddenSignal
from distill.losses.fused import Signal
from distill.losses.tokens import gradient_scale, predicting_positions
from distill.teacher.codecs import Codec, Hidden, Samples, TopKTail
from distill.teacher.live import LiveTeacher
from distill.training.objective import Objective
from distill.training.student import Student


@dataclass(frozen=True)
class Fidelity:
    """A codec's gradient beside the exact one, both means per token over all batches.

    bytes_per_token: stored, measured. angle: degrees between the two, of one encoding. bias_angle
    and norm_ratio: of the mean over all encodings, whose own noise is `noise` / √repetitions.
    noise: root mean square deviation of an encoding's gradient from that mean, in lengths of the
    exact gradient.
    """

    codec: str
    bytes_per_token: float
    angle: float
    bias_angle: float
    norm_ratio: float
    noise: float
    repetitions: int


def compare_codecs(
    draft: PreTrainedModel,
    teacher: LiveTeacher,
    batches: Sequence[Batch],
    codecs: Mapping[str, Codec],
    objective: Objective,
    vocabulary_size: int,
    *,
    repetitions: int = 4,
    seed: int = 0,
    progress: Callable[[str], None] = lambda done: None,
) -> list[Fidelity]:
    """Measure every codec. repetitions: encodings with other random numbers, at least 2.

    A codec that draws nothing has one encoding. `progress` is told of each that is done. The
    draft's own weights are not changed; its gradients are.
    """
    student = Student(draft, vocabulary_size)
    work: list[tuple[Batch, Tensor, HiddenSignal]] = []
    for batch in batches:
        positions = predicting_positions(batch["supervised"])
        work.append((batch, positions, teacher.signal(batch, positions)))
    exact = _gradient(student, objective, work)
    progress(f"exact gradient of {sum(at.numel() for _, at, _ in work)} tokens")
    found = []
    for name, codec in codecs.items():
        moments, sizes = _Moments(exact), 0.0
        encodings = repetitions if codec.draws else 1
        for number in range(encodings):
            encoded = _Encoded(codec, teacher, seed + number)
            coded = ((batch, at, encoded(signal.hidden)) for batch, at, signal in work)
            moments.add(_gradient(student, objective, coded))
            sizes += encoded.bytes_per_token
            progress(f"{name}, encoding {number + 1} of {encodings}")
        found.append(moments.fidelity(name, sizes / encodings))
    return found


def codecs_for(
    objective: Objective,
    kept: Sequence[int],
    draws: Sequence[int],
    note: Callable[[str], None] = lambda reason: None,
) -> dict[str, Codec]:
    """The codecs to compare, by name: `hidden`, and those of `kept` tokens and of `draws`.

    One that the objective cannot learn from is left out, and `note` is told why.

    Raises:
        UserError: the objective suits none.
    """
    found: dict[str, Codec] = {"hidden": Hidden()}
    objective.check(found["hidden"])  # refuses what no codec could mend
    softness = objective.temperature
    for every in (
        {f"top_k {k}": TopKTail(k, temperature=softness) for k in kept},
        {f"sampled {n}": Samples(n, temperature=softness) for n in draws},
    ):
        try:
            for codec in every.values():
                objective.check(codec)
        except UserError as reason:
            note(f"{', '.join(every)} left out: {reason}")
        else:
            found |= every
    return found


class _Encoded:
    """Applies a codec and undoes it, counting the bytes between."""

    def __init__(self, codec: Codec, teacher: LiveTeacher, seed: int):
        self._codec, self._head = codec, teacher.head
        self._generator = torch.Generator(self._head.weight.device).manual_seed(seed)
        self._bytes = self._tokens = 0

    def __call__(self, hidden: Tensor) -> Signal:
        columns = self._codec.encode(hidden, self._head, self._generator)
        self._bytes += sum(column.nbytes for column in columns.values())
        self._tokens += len(hidden)
        index = torch.arange(len(hidden), device=hidden.device)
        return self._codec.signal(self._codec.take(columns, index), self._head)

    @property
    def bytes_per_token(self) -> float:
        return self._bytes / self._tokens


class _Moments:
    """First and second moments of gradients [P], without keeping the gradients."""

    def __init__(self, exact: Tensor):
        self._exact = exact
        self._total = torch.zeros_like(exact)
        self._squares = self._angles = 0.0
        self._count = 0

    def add(self, gradient: Tensor) -> None:
        self._total += gradient
        self._squares += _length(gradient) ** 2
        self._angles += _angle(gradient, self._exact)
        self._count += 1

    def fidelity(self, name: str, bytes_per_token: float) -> Fidelity:
        n, length = self._count, _length(self._exact)
        mean = self._total / n
        variance = (self._squares - n * _length(mean) ** 2) / max(n - 1, 1)
        return Fidelity(
            codec=name,
            bytes_per_token=bytes_per_token,
            angle=self._angles / n,
            bias_angle=_angle(mean, self._exact),
            norm_ratio=_length(mean) / length,
            noise=math.sqrt(max(variance, 0.0)) / length,
            repetitions=n,
        )


def _gradient(
    student: Student, objective: Objective, work: Iterable[tuple[Batch, Tensor, Signal]]
) -> Tensor:
    """The gradient [P] of the loss's mean per supervised token over all batches."""
    student.zero_grad(set_to_none=True)
    tokens = 0
    for batch, positions, signal in work:
        student(batch, positions, signal, objective)[0].backward()
        tokens += positions.numel()
    parts = [p.grad.flatten() for p in student.parameters() if p.grad is not None]
    return torch.cat(parts).mul_(gradient_scale(tokens))


def _angle(one: Tensor, other: Tensor) -> float:
    """The angle between two gradients [P], in degrees."""
    difference = (one / _length(one)).sub_(other / _length(other))
    return math.degrees(2 * math.asin(min(1.0, _length(difference) / 2)))  # accurate if small


def _length(gradient: Tensor) -> float:
    """Length of a gradient [P]; float32 would lose small squares in a sum of millions."""
    return torch.linalg.vector_norm(gradient, dtype=torch.double).item()
