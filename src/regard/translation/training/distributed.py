"""Several processes that share every batch, by PyTorch's own DistributedDataParallel; `torchrun` starts them."""

import os
from typing import Any

import torch
from torch import distributed, nn

from regard.translation.batching import Plan


class Group:
    """The processes of this training: one, unless torchrun has started several."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        """rank: which of the processes this is; the first one writes and validates."""
        self.rank, self.size = rank, size

    @classmethod
    def join(cls, device: torch.device) -> "Group":
        """Meet the processes that torchrun has started; gloo between CPUs, NCCL between GPUs."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls()
        if not distributed.is_initialized():
            distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        return cls(distributed.get_rank(), size)

    @property
    def leads(self) -> bool:
        """Whether this process writes and validates."""
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model whose gradients are the mean over all processes."""
        return model if self.size == 1 else nn.parallel.DistributedDataParallel(model)

    def share(self, planned: Plan) -> Plan:
        """This process's rows of a batch; each has as many, with empty rows where there are too few."""
        if self.size == 1:
            return planned
        return planned._replace(rows=planned.rows[self.rank :: self.size], batch=-(-planned.batch // self.size))

    def tell(self, value: Any) -> Any:
        """What the first process says, to all."""
        if self.size == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """What every process says, in the order of their ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def leave(self) -> None:
        """Part from the others."""
        if self.size > 1 and distributed.is_initialized():
            distributed.destroy_process_group()
