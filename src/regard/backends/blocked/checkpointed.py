"""Blocks of queries under ordinary autograd, recomputed in the backward pass: for scores and biases that are code.

A user's callable may close over any tensor, so its gradient cannot be written by hand. Each block of queries runs
as a non-reentrant checkpoint: memory is that of one block, and double backward works.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.backends import equations
from regard.backends.problem import Problem

# Elements of one block: pairs times the width of a token, since many callables hold a tensor of that size.
BLOCK_ELEMENTS = {"cpu": 2**24, "cuda": 2**26}
# Every block leaves a checkpoint behind: blocks of fewer queries than this would cost more than they save.
FEWEST_QUERIES = 16


def row_blocks(problem: Problem) -> list[slice]:
    """Blocks of queries small enough to be materialised."""
    queries = problem.queries
    if queries == 0:
        return [slice(0, 0)]
    budget = BLOCK_ELEMENTS.get(problem.value.device.type, BLOCK_ELEMENTS["cuda"])
    height = max(budget * queries // max(problem.work, 1), FEWEST_QUERIES)
    if height >= queries:  # said apart: a compiler then has one graph for all lengths up to here
        return [slice(0, queries)]
    return [slice(start, min(start + height, queries)) for start in range(0, queries, height)]


def by_rows(problem: Problem, function: Callable[[slice | None], tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
    """A function of a block of queries, or of all (None), applied to all blocks and recomputed in the backward pass."""
    blocks = row_blocks(problem)
    if len(blocks) == 1:  # no slice: handed on, one whose end is a symbol is a number to a compiler
        return [function(None)]
    if not torch.is_grad_enabled():
        return [function(rows) for rows in blocks]
    random = problem.dropout > 0
    return [checkpoint(function, rows, use_reentrant=False, preserve_rng_state=random) for rows in blocks]


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output (*batch, queries, value_dim) and log_mass (*batch, queries)."""
    if len(row_blocks(problem)) == 1:
        return equations.pool(problem)
    outputs, log_masses = zip(*by_rows(problem, lambda rows: equations.pool(problem, rows)), strict=True)
    return torch.cat(outputs, dim=-2), torch.cat(log_masses, dim=-1)
