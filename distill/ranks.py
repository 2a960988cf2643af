"""Which process of a distributed job this is, before torch.distributed is initialised."""

import os
from collections.abc import Mapping

_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
"""In Lightning's order: children of its launcher inherit SLURM_PROCID=0 from a batch script."""


def local_rank(environment: Mapping[str, str] = os.environ) -> int:
    """This process's place on its node, by which it takes a GPU of its own."""
    return int(environment.get("LOCAL_RANK", environment.get("SLURM_LOCALID", "0")))


def processes(environment: Mapping[str, str] = os.environ) -> int:
    """How many processes torchrun or srun started together; 1 where nothing says so.

    Lightning's own launcher starts the others later, when it trains.
    """
    return int(environment.get("WORLD_SIZE", environment.get("SLURM_NTASKS", "1")))


def is_rank_zero(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process writes artifacts and talks to MLflow.

    A launcher of one process per node sets only the node's rank.
    """
    if int(environment.get("NODE_RANK", environment.get("GROUP_RANK", "0"))) > 0:
        return False
    ranks = (environment[name] for name in _RANK_VARIABLES if name in environment)
    return int(next(ranks, "0")) == 0
