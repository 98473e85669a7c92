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


def row_blocks(*problems: Problem) -> list[slice]:
    """Blocks of queries small enough to be materialised; problems: of the same queries, each with keys of its own."""
    queries = problems[0].queries
    if queries == 0:
        return [slice(0, 0)]
    budget = BLOCK_ELEMENTS.get(problems[0].value.device.type, BLOCK_ELEMENTS["cuda"])
    work = sum(problem.work for problem in problems)
    height = max(budget * queries // max(work, 1), FEWEST_QUERIES)
    if height >= queries:  # said apart: a compiler then has one graph for all lengths up to here
        return [slice(0, queries)]
    return [slice(start, min(start + height, queries)) for start in range(0, queries, height)]


def by_rows(function: Callable[[slice | None], tuple[Tensor, ...]], *problems: Problem) -> list[tuple[Tensor, ...]]:
    """A function of a block of queries, or of all (None), applied to all blocks and recomputed in the backward pass."""
    blocks = row_blocks(*problems)
    if len(blocks) == 1:  # no slice: handed on, one whose end is a symbol is a number to a compiler
        return [function(None)]
    if not torch.is_grad_enabled():
        return [function(rows) for rows in blocks]
    # A user's function may draw numbers of its own.
    random = any(problem.dropout > 0 or problem.is_code for problem in problems)
    return [checkpoint(function, rows, use_reentrant=False, preserve_rng_state=random) for rows in blocks]


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output (*batch, queries, value_dim) and log_mass (*batch, queries)."""
    if len(row_blocks(problem)) == 1:
        return equations.pool(problem)
    outputs, log_masses = zip(*by_rows(lambda rows: equations.pool(problem, rows), problem), strict=True)
    return torch.cat(outputs, dim=-2), torch.cat(log_masses, dim=-1)
