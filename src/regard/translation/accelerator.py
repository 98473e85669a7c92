"""Where a training runs: its processes, CUDA graphs, the precision of products, random states, and the machine."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn

from regard.translation.batching import Batch, Plan, tensors_of

if TYPE_CHECKING:
    from regard.translation.training import Update


class Processes:
    """The processes of this training: one, unless torchrun has started several."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        """rank: which of the processes this is; the first one writes and validates."""
        self.rank, self.size = rank, size

    @classmethod
    def join(cls, device: torch.device) -> "Processes":
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


Shape = tuple[int, int, int]


class CudaGraphUpdate:
    """`Update` on CUDA, recorded at the first batch of a shape and replayed from then on.

    Weights, moments, learning rate and totals are tensors that every graph reads and writes in place; the graphs run
    one after the other and share one pool of memory. Dropout draws anew at every replay.
    """

    def __init__(self, update: "Update") -> None:
        """update: on CUDA; its optimiser is capturable, with its learning rate in a tensor."""
        self.update, self.totals = update, update.totals
        self.graphs: dict[Shape, tuple[torch.cuda.CUDAGraph, list[Tensor]]] = {}
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()

    def __call__(self, batch: Batch) -> None:
        """Lower the loss of one batch."""
        shape = (len(batch.source), batch.source.shape[1], batch.target.shape[1])
        if shape not in self.graphs:
            self.graphs[shape] = self._record(batch)
            return
        graph, inputs = self.graphs[shape]
        for held, part in zip(inputs, tensors_of(batch), strict=True):
            held.copy_(part, non_blocking=True)
        graph.replay()

    def _record(self, batch: Batch) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
        """Run the update once eagerly, which also warms up the libraries, then record the next one unrun."""
        inputs = [part.to(self.update.device) for part in tensors_of(batch)]
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.update.run(*inputs)
        torch.cuda.current_stream().wait_stream(self.stream)
        self.update.optimiser.zero_grad()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self.update.run(*inputs)
        return graph, inputs


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Within it a GPU's float32 products are as exact as the recipe says; then as before."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def get_rng_state(device: torch.device) -> dict[str, Tensor]:
    """The states of the generators that a training on this device draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_rng_state(device: torch.device, states: dict[str, Tensor]) -> None:
    """Go on drawing from there."""
    torch.set_rng_state(states["cpu"].cpu())
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)


def environment(device: torch.device) -> dict[str, str]:
    """The facts, as they are stored in a checkpoint."""
    told = {"torch": str(torch.__version__), "processor": _processor(), "threads": str(torch.get_num_threads())}
    if device.type == "cuda":
        told["gpu"] = torch.cuda.get_device_name(device)
    return told


def describe_changes(then: dict[str, str], now: dict[str, str]) -> str:
    """What has changed since, in words; empty where nothing has."""
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
