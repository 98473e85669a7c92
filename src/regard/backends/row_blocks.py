"""Blocks of queries under ordinary autograd, recomputed in the backward pass.

For scores and biases that are functions of the user, for closed forms without tiles of their own, and for what a record
computes from its weights. A user's function may close over any tensor, so its gradient cannot be written by hand. Each
block of queries is a non-reentrant checkpoint: memory is that of one block, and double backward works.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.backends.base import Problem, Result
from regard.backends.reference import attention

# Elements of one block (see Problem.elements).
BLOCK_ELEMENTS = {"cpu": 2**24, "cuda": 2**26}
# Every block leaves a checkpoint behind, which costs more than smaller blocks save.
MIN_QUERIES = 16


def run(problem: Problem) -> Result:
    """Return output and log mass, computed block by block."""

    def block(rows: slice | None) -> tuple[Tensor, ...]:
        output, log_mass, _ = attention(problem, rows)
        assert log_mass is not None
        return output, log_mass

    outputs, log_masses = zip(*map_rows(block, problem), strict=True)
    if len(outputs) == 1:
        return Result(outputs[0], log_masses[0])
    return Result(torch.cat(outputs, dim=-2), torch.cat(log_masses, dim=-1))


def map_rows(function: Callable[[slice | None], tuple[Tensor, ...]], *problems: Problem) -> list[tuple[Tensor, ...]]:
    """Apply a function of a block of queries to every block; the backward pass recomputes it.

    Args:
        function: takes a slice of queries, or None for all of them.
        problems: problems with the same queries, each with its own keys.
    """
    blocks = row_blocks(*problems)
    if len(blocks) == 1:  # None, because a compiler specialises on a slice whose end is a symbol
        return [function(None)]
    if not torch.is_grad_enabled():
        return [function(rows) for rows in blocks]
    # A user's function may draw random numbers.
    random = any(problem.dropout > 0 or problem.uses_callable for problem in problems)
    return [checkpoint(function, rows, use_reentrant=False, preserve_rng_state=random) for rows in blocks]


def row_blocks(*problems: Problem) -> list[slice]:
    """Return blocks of queries that are small enough to materialise."""
    queries = problems[0].queries
    if queries == 0:
        return [slice(0, 0)]
    budget = BLOCK_ELEMENTS.get(problems[0].value.device.type, BLOCK_ELEMENTS["cuda"])
    elements = sum(problem.elements for problem in problems)
    height = max(budget * queries // max(elements, 1), MIN_QUERIES)
    if height >= queries:  # apart from the loop, so that a compiler has one graph for all lengths up to here
        return [slice(0, queries)]
    return [slice(start, min(start + height, queries)) for start in range(0, queries, height)]
