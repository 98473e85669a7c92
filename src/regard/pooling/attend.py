"""Attention pooling as one operator: attend, and inspect for those who want to look inside (eq. 1 to 3)."""

import math

import torch
from torch import Tensor

from regard.backends import equations
from regard.backends.choice import choose
from regard.backends.equations import full_precision
from regard.backends.problem import Bias, Problem
from regard.errors import RegardError
from regard.masks import Mask
from regard.pooling import everyday
from regard.pooling.attended import Attended
from regard.pooling.prepare import Settings, prepare
from regard.scores.names import ScoreLike

__all__ = ["attend", "inspect", "pool", "pool_inspect", "pool_with_weights"]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score: ScoreLike = "scaled_dot",
    mask: Mask | None = None,
    *,
    bias: Bias | None = None,
    dropout: float = 0.0,
    tolerance: float | None = None,
    backend: str = "auto",
) -> Tensor:
    """Pool values by how well their keys answer each query: sum_j softmax_j(score(query, key_j)) value_j.

    Args:
        query: (*batch, queries, query_dim).
        key: (*batch, keys, key_dim); each batch axis is equal to the query's or 1. Heads are a batch axis.
        value: (*batch, keys, value_dim).
        score: a name such as "scaled_dot" or "gaussian", a module of `regard.scores`, or any callable that takes
            (..., queries, query_dim) and (..., keys, key_dim) and returns (..., queries, keys).
        mask: a `regard.Mask`: who may attend to whom. A query that may see no key gets 0.
        bias: added to the scores: a tensor that broadcasts to (*batch, queries, keys), or a callable of query
            positions (queries,) and key positions (keys,). Positions count from 0, as those of `scores.Rotary`
            do; a layer's Memory counts queries from its end.
        dropout: the probability with which a weight is dropped, whenever it is above 0.
        tolerance: the error allowed for each tanh of an additive score; None is what `regard.why` promises. Nothing
            is more exact than the rounding of the accumulation dtype, and other scores are always that exact.
        backend: "auto", or the name of one that must run it.

    Returns:
        (*batch, queries, value_dim) in value's dtype.

    >>> import torch, regard
    >>> keys = torch.tensor([[0.0], [1.0], [2.0]])
    >>> regard.attend(torch.tensor([[1.0]]), keys, keys, score="gaussian")
    tensor([[1.]])
    """
    if bias is None and tolerance is None and backend == "auto" and type(dropout) is float and dropout == 0:
        output = everyday.pool(query, key, value, score, mask)
        if output is not None:
            return output
    problem, sink = prepare(query, key, value, score, Settings(mask, bias, dropout, tolerance))
    return pool(problem, sink, backend)


def inspect(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score: ScoreLike = "scaled_dot",
    mask: Mask | None = None,
    *,
    bias: Bias | None = None,
    dropout: float = 0.0,
    tolerance: float | None = None,
    backend: str = "auto",
) -> Attended:
    """The same pooling as `attend`, as a record that can be asked for weights, entropy and more."""
    problem, sink = prepare(query, key, value, score, Settings(mask, bias, dropout, tolerance))
    return pool_inspect(problem, sink, backend)


def pool(problem: Problem, sink: Tensor | None, backend: str) -> Tensor:
    """Run a prepared problem for its output alone."""
    if sink is not None:
        return pool_inspect(problem, sink, backend).output
    chosen = choose(problem, backend, log_mass=False)
    with full_precision(problem.value.device):
        return chosen.run(problem)[0]


def pool_inspect(problem: Problem, sink: Tensor | None, backend: str) -> Attended:
    """Run a prepared problem for its record, which may be asked for more of it later."""
    problem = problem.without_padding()
    chosen = choose(problem, backend, log_mass=True)
    with full_precision(problem.value.device):
        output, log_mass = chosen.run(problem)
    assert log_mass is not None
    if sink is not None:
        # A key with value 0 that takes its share of the mass: the merge of the result with that one key.
        _check_sink(sink, log_mass)
        with_sink = torch.logaddexp(log_mass, sink.to(log_mass.dtype).unsqueeze(-1))
        share = (log_mass - with_sink.masked_fill(with_sink == -math.inf, 0.0)).exp()
        output = (output * share.unsqueeze(-1)).to(output.dtype)
        log_mass = with_sink
    return Attended(output, log_mass, (problem,), sink is not None)


def pool_with_weights(problem: Problem, sink: Tensor | None, backend: str) -> tuple[Tensor, Tensor]:
    """Output and weights of one pass, materialised: for the few queries of a decoder's step, which wants both."""
    if sink is not None or problem.dropout or backend not in ("auto", "reference"):
        record = pool_inspect(problem, sink, backend)
        return record.output, record.weights()
    problem = problem.without_padding()
    with full_precision(problem.value.device):
        weights, _ = equations.softmax(equations.scores(problem))
        output = weights @ problem.value.to(weights.dtype)
    return output.to(problem.value.dtype), weights


def _check_sink(sink: Tensor, log_mass: Tensor) -> None:
    """sink: (*heads); log_mass: (*batch, queries)."""
    if log_mass.shape[:-1][-sink.ndim :] != sink.shape:
        raise RegardError(
            "score",
            got=f"a sink for {tuple(sink.shape)} heads and batch axes {tuple(log_mass.shape[:-1])}",
            needed="the heads of the sink as the last batch axes",
            repair="Build the score with sink=heads for the heads it is called with.",
        )
