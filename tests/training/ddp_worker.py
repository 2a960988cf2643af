"""One rank of a two-process training, or the one process it must equal.

`python ddp_worker.py FOLDER OBJECTIVE` writes FOLDER/rank<n>.pt: the gradients each step's
optimizer saw, the final weights and the result.
"""

import itertools
import os
import sys
from pathlib import Path
from typing import Any

import conftest as tiny
import pytest
import torch

from distill.training import module
from distill.training.config import TrainerConfig
from distill.training.objective import Objective

# Supervised tokens of the micro-batches, [window][rank]: other counts, other numbers of
# micro-batches, a rank with nothing, and a window with nothing at all.
WINDOWS = [
    [[2], [6, 4]],
    [[0], [3]],
    [[0], [0]],
    [[5], [1]],
]
TOKENS = 21


RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


class RankWindows(tiny.Windows):
    def val_dataloader(self) -> Any:
        """10 and 4 tokens, one batch a rank: equal ones would hide that nothing is pooled."""
        return super().val_dataloader()[RANK::WORLD]

    def _windows(self) -> Any:
        for position in itertools.count(self.position):
            shares = WINDOWS[position % len(WINDOWS)]
            mine = range(2) if WORLD == 1 else [RANK]
            yield [
                tiny.micro_batch(100 * position + 10 * r + i, [tiny.marks(count, length=12)])
                for r in mine
                for i, count in enumerate(shares[r])
            ]


OBJECTIVES = {
    "forward_kl": Objective(),
    "acceptance": Objective("acceptance"),
}


def main(folder: Path, objective: str) -> None:
    gradients: list[torch.Tensor] = []
    scale_and_clip = module.scale_and_clip

    def recorded(parameters: Any, scale: float, max_norm: float) -> float:
        parameters = list(parameters)
        norm = scale_and_clip(parameters, scale, max_norm)
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        gradients.append(torch.cat([gradient.flatten() for gradient in found]))
        return norm

    target = tiny.llama(32, seed=0)
    config = TrainerConfig(
        accelerator="cpu",
        devices=str(WORLD),
        strategy="ddp" if WORLD > 1 else "auto",
        precision="32-true",
        checkpoints=2,
        resume_every_seconds=0.0,
        gradient_clip=0.0,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "scale_and_clip", recorded)
        result, draft, _ = tiny.train(
            folder,
            patch,
            tokens=TOKENS,
            trainer=config,
            datamodule=RankWindows(),
            teacher=tiny.LiveTeacher(target),
            decoding=tiny.decoding(target),
            objective=OBJECTIVES[objective],
        )
    weights = torch.cat([p.detach().flatten() for p in draft.parameters()])
    state = {"gradients": gradients, "weights": weights, "result": result}
    torch.save(state, folder / f"rank{RANK}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
