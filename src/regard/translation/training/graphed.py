"""The same update as one graph of a GPU for each shape of batch: it is launched once, not kernel by kernel.

A recurrent decoder is hundreds of small kernels in a row, and launching them takes longer than running them.
"""

import torch
from torch import Tensor

from regard.translation.batching import Batch
from regard.translation.training.update import Update, tensors_of

Shape = tuple[int, int, int]


class GraphedUpdate:
    """`Update` on CUDA, recorded at the first batch of a shape and replayed from then on.

    Weights, moments, learning rate and totals are tensors that every graph reads and writes in place; the graphs run
    one after the other and share one pool of memory. Dropout draws anew at every replay.
    """

    def __init__(self, update: Update) -> None:
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
