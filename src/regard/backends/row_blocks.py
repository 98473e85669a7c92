"""Attention computed in blocks of queries, each a checkpoint that the backward pass recomputes.

Used for callable scores and biases, for closed forms without tiled code, and for everything that an `Attended` record
computes from its weights. A callable may depend on any tensor, so its gradient must come from autograd. Checkpoints are
non-reentrant: memory is that of one block, and double backward works.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.backends.base import Problem, Result
from regard.backends.reference import attention

# Largest number of elements of a block (see Problem.elements), unless MIN_QUERIES queries have more.
BLOCK_ELEMENTS = {"cpu": 2**24, "cuda": 2**26}
# Smallest number of queries of a block: the checkpoint of each block costs more than smaller blocks save.
MIN_QUERIES = 16


def run(problem: Problem) -> Result:
    """Return output and log mass, computed block by block.

    Args:
        problem: the call after preparation.

    Returns:
        The result, without weights.
    """

    def run_block(rows: slice | None) -> tuple[Tensor, ...]:
        output, log_mass, _ = attention(problem, rows)
        assert log_mass is not None
        return output, log_mass

    outputs, log_masses = zip(*map_rows(run_block, problem), strict=True)
    if len(outputs) == 1:
        return Result(outputs[0], log_masses[0])
    return Result(torch.cat(outputs, dim=-2), torch.cat(log_masses, dim=-1))


def map_rows(function: Callable[[slice | None], tuple[Tensor, ...]], *problems: Problem) -> list[tuple[Tensor, ...]]:
    """Apply a function to every block of queries. If gradients are enabled, the backward pass recomputes each block.

    Args:
        function: takes a slice of queries, or None for all queries.
        *problems: problems with the same queries, each with its own keys; their sizes determine the blocks.

    Returns:
        The results of the blocks, in the order of the queries.
    """
    blocks = row_blocks(*problems)
    if len(blocks) == 1:
        return [function(None)]  # not the slice: torch.compile specialises on a slice with a symbolic end
    if not torch.is_grad_enabled():
        return [function(rows) for rows in blocks]
    # Dropout and callables may draw random numbers, which must be the same when a block is recomputed.
    is_random = any(problem.dropout > 0 or problem.uses_callable for problem in problems)
    return [checkpoint(function, rows, use_reentrant=False, preserve_rng_state=is_random) for rows in blocks]


def row_blocks(*problems: Problem) -> list[slice]:
    """Return blocks of queries whose scores are small enough to materialise.

    Args:
        *problems: problems with the same queries, each with its own keys.

    Returns:
        Slices that cover all queries in order; one empty slice if there are no queries.
    """
    queries = problems[0].queries
    if queries == 0:
        return [slice(0, 0)]
    max_elements = BLOCK_ELEMENTS.get(problems[0].value.device.type, BLOCK_ELEMENTS["cuda"])
    elements = sum(problem.elements for problem in problems)
    block_queries = max(max_elements * queries // max(elements, 1), MIN_QUERIES)
    if block_queries >= queries:  # a separate branch, so that torch.compile has one graph for all such lengths
        return [slice(0, queries)]
    return [slice(start, min(start + block_queries, queries)) for start in range(0, queries, block_queries)]
