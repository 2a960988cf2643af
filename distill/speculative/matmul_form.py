"""The forms of a product of few rows, and which of them is fastest on this machine.

A decode step multiplies each weight by one to a few rows, so it is bound by reading the weight.
Which call reads it fastest depends on the processor, the library below torch, the shape and the
rows: in fp32 on an AVX2 processor, two rows through `F.linear` take twice the time of one, and as
`mm(weight, x.t())` little more than one. So nothing is assumed: on a CPU each form is timed once
per machine for each shape of weight, and the fastest is written to `$DISTILL_CACHE/products`
(default `~/.cache/distill/products`; delete the folder to measure again). On other devices, and
for weights too small to matter, nothing is measured.

Shapes: R rows, I inputs, O outputs of a weight [O, I].
"""

import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from distill.files import read_json, write_json
from distill.versions import hardware

FEW_ROWS = 16
"""Products of more rows always take `F.linear`."""
MEASURED_ROWS = (1, 2, 3, 4, 5, 6, 8, 12, FEW_ROWS)
"""Numbers of rows that are timed; one in between takes the form of the next larger."""
WORTH_MEASURING = 2**15
"""Elements of a weight below which the call costs more than the product, whatever its form."""
COLD_BYTES = 2**25
"""Bytes that copies of a weight fill; they are read in turn, as a decode step reads its layers."""
LARGEST_SAMPLE = 2**23
"""Bytes of a weight that are timed: of a large one, such as the head, the first rows."""
RUNS = 12
"""Times that a form is timed; the shortest counts."""


def _transposed(weight: Tensor, x: Tensor) -> Tensor:
    # The result is put in order: what reads it next, above all another product, is faster so.
    return torch.mm(weight, x.t()).t().contiguous()


def _padded(weight: Tensor, x: Tensor) -> Tensor:
    R = x.shape[0]
    return torch.mm(weight, F.pad(x, (0, 0, 0, -R % 4)).t()).t()[:R].contiguous()


def _vector(weight: Tensor, x: Tensor) -> Tensor:
    return torch.mv(weight, x.view(-1)).view(1, -1)


FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": lambda weight, x: F.linear(x, weight),
    "transposed": _transposed,
    "padded": _padded,
    "vector": _vector,
}
"""weight [O, I], x [R, I] -> [R, O]. `padded` adds rows of zeros up to a multiple of four; `vector`
is for one row only."""
WIDE_FORMS = {"fp32 linear": "linear", "fp32 transposed": "transposed"}
"""The same over an fp32 copy of a small bf16 weight, for processors that are slow in bf16."""

Chosen = tuple[str, ...]
"""The form for each number of rows from 1 to FEW_ROWS."""

_chosen: dict[int, dict[str, Chosen]] = {}
"""By number of threads and shape: what this process has decided."""
_forced: list[str] = []


def choose_forms(weight: Tensor, wide: Tensor | None) -> Chosen:
    """The fastest form for each number of rows; measured once per machine, then remembered.

    Within a process the choice for a shape never changes, so that equal calls give equal results.
    wide: an fp32 copy of the weight, where there is one.
    """
    if _forced:
        return tuple(_possible(_forced[-1], rows, wide) for rows in range(1, FEW_ROWS + 1))
    if weight.device.type != "cpu" or weight.numel() < WORTH_MEASURING:
        return ("linear" if wide is None else "fp32 linear",) * FEW_ROWS
    machine = _machine(torch.get_num_threads())
    known = _chosen.setdefault(torch.get_num_threads(), {})
    shape = f"{weight.shape[0]}x{weight.shape[1]} {str(weight.dtype).removeprefix('torch.')}"
    if shape not in known:
        file = _file(machine)
        known.update({name: forms for name, forms in _read(file).items() if name not in known})
        if shape not in known:
            known[shape] = _measured(weight, wide)
            _write(file, machine, known)
    return known[shape]


@contextmanager
def forced(form: str) -> Iterator[None]:
    """Give every weight that is taken over inside this block one form, where that is possible.

    A hook for tests: models that decode inside the block use this form in every product of few
    rows that has it, and `F.linear` in the others.
    """
    if form not in FORMS and form not in WIDE_FORMS:
        raise ValueError(f"{form!r} is none of {', '.join([*FORMS, *WIDE_FORMS])}")
    _forced.append(form)
    try:
        yield
    finally:
        _forced.pop()


def _possible(form: str, rows: int, wide: Tensor | None) -> str:
    impossible = (form == "vector" and rows > 1) or (form in WIDE_FORMS and wide is None)
    return "linear" if impossible else form


def _candidates(rows: int, wide: Tensor | None) -> list[str]:
    names = ["linear", "transposed"]
    if rows == 1:
        names.append("vector")
    if rows % 4:
        names.append("padded")
    return names + ([] if wide is None else list(WIDE_FORMS))


@torch.inference_mode()
def _measured(weight: Tensor, wide: Tensor | None) -> Chosen:
    """Time the forms over copies of the weight that are read in turn; the shortest time counts."""
    rows_timed = max(1, LARGEST_SAMPLE // (weight.shape[1] * weight.element_size()))
    sample = weight[:rows_timed]
    count = min(max(COLD_BYTES // (sample.numel() * sample.element_size()), 2), RUNS)
    copies = [sample.clone() for _ in range(count)]
    wides = None if wide is None else [copy.float() for copy in copies]
    best: dict[int, str] = {}
    for rows in MEASURED_ROWS:
        x = torch.ones(rows, weight.shape[1], dtype=weight.dtype)
        times = dict.fromkeys(_candidates(rows, wide), float("inf"))
        for run in range(RUNS):
            for form in times:
                start = time.perf_counter()
                if form in WIDE_FORMS and wides is not None:
                    multiply_wide(form, wides[run % count], x)
                else:
                    FORMS[form](copies[run % count], x)
                times[form] = min(times[form], time.perf_counter() - start)
        best[rows] = min(times, key=times.__getitem__)
    return tuple(
        best[min(n for n in MEASURED_ROWS if n >= rows)] for rows in range(1, FEW_ROWS + 1)
    )


def multiply_wide(form: str, wide: Tensor, x: Tensor) -> Tensor:
    """Multiply in fp32 and round to the dtype of x, as a bf16 product rounds its fp32 sum."""
    return FORMS[WIDE_FORMS[form]](wide, x.float()).to(x.dtype)


@functools.cache
def _machine(threads: int) -> dict[str, Any]:
    """What the fastest form depends on beside the weight."""
    return {
        "cpu": str(hardware()["cpu"]),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "onednn": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
        "torch": torch.__version__,
        "threads": threads,
        "candidates": [_candidates(rows, None) for rows in MEASURED_ROWS],
    }


def _file(machine: dict[str, Any]) -> Path:
    name = hashlib.sha256(json.dumps(machine).encode()).hexdigest()[:12]
    root = Path(os.environ.get("DISTILL_CACHE", "~/.cache/distill")).expanduser()
    return root / "products" / f"{name}.json"


def _read(file: Path) -> dict[str, Chosen]:
    """The choices of earlier processes; none where the file is missing or is not such a file."""
    try:
        found = {shape: tuple(forms) for shape, forms in read_json(file)["forms"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    names = {*FORMS, *WIDE_FORMS}
    return {
        s: forms for s, forms in found.items() if len(forms) == FEW_ROWS and names >= set(forms)
    }


def _write(file: Path, machine: dict[str, Any], known: dict[str, Chosen]) -> None:
    """Remember for later processes; where the folder cannot be written they measure again."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {**machine, "forms": {**_read(file), **known}})
    except OSError:
        pass
