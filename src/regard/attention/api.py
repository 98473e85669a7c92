"""Attention as one operator (eq. 1 to 3): `attend`, `inspect` to get weights, `why` to explain the chosen backend."""

from torch import Tensor

from regard.attention.attended import Attended
from regard.attention.prepare import Options, prepare
from regard.backends import dispatch
from regard.backends.base import Bias, Need
from regard.backends.dispatch import Why
from regard.errors import RegardError
from regard.masks import Mask
from regard.scores.names import ScoreLike


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
    """Return sum_j softmax_j(score(query, key_j)) value_j, the values weighted by how well their keys match each query.

    Args:
        query: (*batch, queries, query_dim). Heads are a batch axis.
        key: (*batch, keys, key_dim). The batch axes of query, key and value broadcast: sizes are equal, or one is 1.
        value: (*batch, keys, value_dim).
        score: a name such as "scaled_dot" or "gaussian", a module of `regard.scores`, or any callable that takes
            (..., queries, query_dim) and (..., keys, key_dim) and returns (..., queries, keys).
        mask: which keys each query may attend to. A query without allowed keys gets 0.
        bias: added to the scores: a tensor that broadcasts to (*batch, queries, keys), or a callable that takes query
            positions (queries,) and key positions (keys,) and returns such a tensor. Positions count from 0, as for
            `scores.Rotary`.
        dropout: probability with which a weight is dropped. There is no training mode: it applies to every call.
        tolerance: largest error allowed for each tanh of an additive score; None for the rounding error of the input
            dtype. `regard.why` prints the error of the backend that runs. Other scores ignore the tolerance. No result
            is more precise than the rounding of the accumulation dtype.
        backend: "auto", or the name of the backend that must run the call.

    Returns:
        (*batch, queries, value_dim) in the dtype of value.

    Raises:
        RegardError: if an argument is invalid, or if the named backend refuses the call.

    >>> import torch, regard
    >>> keys = torch.tensor([[0.0], [1.0], [2.0]])
    >>> regard.attend(torch.tensor([[1.0]]), keys, keys, score="gaussian")
    tensor([[1.]])
    """
    problem = prepare(query, key, value, score, Options(mask, bias, dropout=dropout, tolerance=tolerance))
    return dispatch.run(problem, backend).output


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
    """Return the result of `attend` as a record that computes weights, entropy and more on demand.

    Args:
        query: as for `attend`.
        key: as for `attend`.
        value: as for `attend`.
        score: as for `attend`.
        mask: as for `attend`.
        bias: as for `attend`.
        dropout: as for `attend`. The weights of the record are those before dropout.
        tolerance: as for `attend`.
        backend: as for `attend`.

    Returns:
        The record.

    Raises:
        RegardError: as for `attend`.

    >>> import torch, regard
    >>> keys = torch.tensor([[0.0], [1.0], [2.0]])
    >>> regard.inspect(torch.tensor([[1.0]]), keys, keys, score="boxcar").weights()
    tensor([[0.3333, 0.3333, 0.3333]])
    """
    problem = prepare(query, key, value, score, Options(mask, bias, dropout=dropout, tolerance=tolerance))
    return Attended.of(problem, backend)


def why(
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
    need: Need = "output",
) -> Why:
    """Return which backend would run a call and why the others would not, without computing attention.

    Args:
        query: as for `attend`.
        key: as for `attend`.
        value: as for `attend`.
        score: as for `attend`.
        mask: as for `attend`.
        bias: as for `attend`.
        dropout: as for `attend`.
        tolerance: as for `attend`.
        backend: as for `attend`.
        need: what the call computes: "output" for `attend`, "log_mass" for `inspect`, or "weights" for
            `recall_with_weights` of the layers and `output_attentions` of transformers.

    Returns:
        The chosen backend, its error bound and the reasons of the others. Print it to read it.

    Raises:
        RegardError: as for `attend`, and for an unknown `need`.

    >>> import torch, regard
    >>> x = torch.randn(2, 7, 4)
    >>> print(regard.why(x, x, x).backend)
    torch
    """
    if need not in ("output", "log_mass", "weights"):
        raise RegardError(
            "need",
            got=repr(need),
            needed='"output", "log_mass" or "weights"',
            repair='Pass "output" to explain attend, or "log_mass" to explain inspect.',
        )
    problem = prepare(query, key, value, score, Options(mask, bias, dropout=dropout, tolerance=tolerance))
    return dispatch.explain(problem, backend, need)
