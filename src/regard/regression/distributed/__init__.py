"""Kernel regression on Dask arrays: the data stay in their blocks, and only sums over each of them travel.

What runs where: every block of the data is pooled by its own task, on the worker that holds or makes it (`tasks`);
tasks send back one mean and one mass for each query, which join exactly, a few at a time, on workers (`regard.merge`).
The client keeps the plan of the graph, a summary of each block, and the answers. The scheduler is Dask's own: a
`distributed.Client`, local or remote, where one is active, threads of this process otherwise. Dask starts its worker
processes with one thread each for torch; with threads of this process, call `torch.set_num_threads(1)` before.
"""

from regard.regression.distributed.answers import answer_block_by_block
from regard.regression.distributed.collections import is_dask, refuse_dask
from regard.regression.distributed.observations import fit

__all__ = ["answer_block_by_block", "fit", "is_dask", "refuse_dask"]
