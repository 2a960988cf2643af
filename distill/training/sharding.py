"""FSDP2: the draft's weights, gradients and optimizer state spread over the ranks."""

import torch
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from transformers import PreTrainedModel

Work = list[tuple[dict[str, Tensor], Tensor]]


def shard(student: nn.Module, mesh: DeviceMesh) -> None:
    """Shard each decoder layer on its own and the rest (embedding, head, final norm) with the root.

    The root is not resharded after its forward: the loss inside it uses the head, and backward
    needs it next.
    """
    data = mesh["data_parallel"]
    for layers in [m for m in student.modules() if isinstance(m, nn.ModuleList)]:
        for layer in layers:
            fully_shard(layer, mesh=data)
    fully_shard(student, mesh=data, reshard_after_forward=False)


def equal_windows(work: Work) -> Work:
    """Lengthen this rank's window to the longest of all ranks, with repeats that supervise nothing.

    Every forward of a sharded module is a collective call: ranks must make equally many.
    """
    count = torch.tensor(len(work), device=work[0][1].device)
    distributed.all_reduce(count, op=distributed.ReduceOp.MAX)
    batch, positions = work[-1]
    return work + [(batch, positions[:0])] * (int(count) - len(work))


def whole_draft(draft: PreTrainedModel, strategy: Strategy) -> PreTrainedModel:
    """The draft whole: itself, or on rank 0 a copy gathered on the CPU. Collective."""
    if not isinstance(strategy, ModelParallelStrategy):
        return draft
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(draft, options=options)
    if strategy.global_rank != 0:
        return draft
    whole = type(draft)(draft.config)
    whole.load_state_dict(state)
    return whole
