"""Where a training runs: its processes, CUDA graphs, the precision of matrix products, random states, the machine."""

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from regard.translation.batching import Batch, BatchPlan


class Processes:
    """The processes of a training: one, or those that torchrun has started.

    They share every batch by its rows (torch's DistributedDataParallel).

    Args:
        rank: The number of this process, from 0.
        size: The number of processes.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @classmethod
    def init(cls, device: torch.device) -> "Processes":
        """Join the process group that torchrun describes: gloo between CPUs, NCCL between GPUs."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls()
        if not distributed.is_initialized():
            distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        return cls(distributed.get_rank(), size)

    @property
    def is_main(self) -> bool:
        """Whether this process validates and writes files: the first one does."""
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return a model whose gradients are the mean over all processes."""
        return model if self.size == 1 else nn.parallel.DistributedDataParallel(model)

    def shard(self, plan: BatchPlan) -> BatchPlan:
        """Return this process's rows of a batch; every process gets the same number, with empty rows where needed."""
        if self.size == 1:
            return plan
        return plan._replace(rows=plan.rows[self.rank :: self.size], batch=-(-plan.batch // self.size))

    def broadcast(self, value: Any) -> Any:
        """Return the first process's value in every process."""
        if self.size == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes in the order of their ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def close(self) -> None:
        """Leave the process group."""
        if self.size > 1 and distributed.is_initialized():
            distributed.destroy_process_group()


Shape = tuple[int, int, int]


class CudaGraphUpdate:
    """An update of the weights as a CUDA graph for each shape of batch.

    A recurrent decoder launches hundreds of small kernels, and launching them takes longer than running them; a graph
    launches them together. The graph of a shape is recorded at its first batch. Weights, optimizer state, learning rate
    and running totals are tensors that all graphs read and write in place; the graphs share one memory pool. Dropout
    draws new numbers at every replay.

    Args:
        run: The update, a fixed sequence of CUDA operations on the tensors of a batch.
        optimizer: Its optimizer, made with `capturable=True` and the learning rate in a tensor.
        device: The GPU.
    """

    def __init__(self, run: Callable[..., None], optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._run, self._optimizer, self._device = run, optimizer, device
        self._graphs: dict[Shape, tuple[torch.cuda.CUDAGraph, list[Tensor]]] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def __call__(self, batch: Batch) -> None:
        """Update the weights on one batch."""
        shape = (len(batch.source), batch.source.shape[1], batch.target.shape[1])
        if shape not in self._graphs:
            self._graphs[shape] = self._record(batch)
            return
        graph, inputs = self._graphs[shape]
        for static, part in zip(inputs, batch.tensors(), strict=True):
            static.copy_(part, non_blocking=True)
        graph.replay()

    def _record(self, batch: Batch) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
        """Run the update once eagerly, which also warms up the libraries, then capture it without running it."""
        inputs = [part.to(self._device) for part in batch.tensors()]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._run(*inputs)
        torch.cuda.current_stream().wait_stream(self._stream)
        self._optimizer.zero_grad()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._run(*inputs)
        return graph, inputs


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Use TF32 matrix products on a GPU unless the precision is "float32"; restore the setting on exit."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def get_rng_state(device: torch.device) -> dict[str, Tensor]:
    """Return the states of the random generators that a training on this device uses."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_rng_state(device: torch.device, states: dict[str, Tensor]) -> None:
    """Restore what `get_rng_state` returned."""
    torch.set_rng_state(states["cpu"].cpu())
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)


def environment(device: torch.device) -> dict[str, str]:
    """Describe what a bit-identical continuation depends on: torch, the processor, the number of threads, the GPU."""
    found = {"torch": str(torch.__version__), "processor": _processor(), "threads": str(torch.get_num_threads())}
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def describe_changes(then: dict[str, str], now: dict[str, str]) -> str:
    """Describe the differences of two environments in words; empty if there are none."""
    changed = [
        f"{key} was {then.get(key, 'not used')}, is {now.get(key, 'not used')}"
        for key in sorted(then.keys() | now.keys())
        if then.get(key) != now.get(key)
    ]
    return "; ".join(changed)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
