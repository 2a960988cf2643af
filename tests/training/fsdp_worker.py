"""One rank of a draft sharded by FSDP2 that takes two steps, or the one process it must equal.

`python fsdp_worker.py FILE` trains with Muon; rank 0 writes the matrices, whole.
"""

import os
import sys
from pathlib import Path

import conftest as tiny
import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from distill.losses.tokens import predicting_positions
from distill.training.config import OptimizerConfig
from distill.training.objective import Objective
from distill.training.optim import build_optimizers, scale_and_clip
from distill.training.sharding import shard
from distill.training.student import Student

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
SUPERVISED = [[5, 3], [2, 6]]
"""Supervised tokens of each step's micro-batches, [step][rank]."""


def main(path: Path) -> None:
    # 33 rows of two matrices fall on two ranks as 17 and 16.
    student = Student(tiny.llama(16, seed=1, intermediate_size=33), tiny.VOCABULARY)
    if WORLD > 1:
        distributed.init_process_group("gloo")
        shard(student, init_device_mesh("cpu", (WORLD,), mesh_dim_names=("data_parallel",)))
    teacher = tiny.LiveTeacher(tiny.llama(32, seed=0))
    optimizers = build_optimizers(student, OptimizerConfig(lr=1e-3, muon=True, muon_lr=0.1))
    for step, counts in enumerate(SUPERVISED):
        for rank in [RANK] if WORLD > 1 else range(len(counts)):
            batch = tiny.micro_batch(10 * step + rank, [tiny.marks(counts[rank])])
            positions = predicting_positions(batch["supervised"])
            signal = teacher.signal(batch, positions)
            student(batch, positions, signal, Objective())[0].backward()
        scale_and_clip(student.parameters(), WORLD / sum(counts), max_norm=1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    found = {name: whole(p) for name, p in student.named_parameters()}
    if RANK == 0:
        torch.save(found, path)
    if WORLD > 1:
        distributed.destroy_process_group()


def whole(parameter: Tensor) -> Tensor:
    sharded = isinstance(parameter, DTensor)
    return (parameter.full_tensor() if sharded else parameter).detach().clone()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
