"""Compare the kernels of distances with the reference: output, log_mass and every gradient, for calls of any kind."""

import copy
from typing import NamedTuple

import torch
from tests import bounds
from torch import Tensor

import regard
from regard import Mask
from regard.testing import dispatch_log


class Call(NamedTuple):
    """The arguments of a call in float64, rounded to the dtype under test."""

    query: Tensor
    key: Tensor
    value: Tensor
    score: regard.scores.Score
    mask: Mask | None = None
    bias: Tensor | None = None


def drawn(score, queries, keys, dim, value_dim, batch=(), key_batch=None, spread=1.0, **settings) -> Call:
    """Return a call with normal tokens, times `spread`; `key_batch` is for keys that are shared along some axes."""
    query = spread * torch.randn(*batch, queries, dim, dtype=torch.float64)
    key = spread * torch.randn(*(batch if key_batch is None else key_batch), keys, dim, dtype=torch.float64)
    value = torch.randn(*batch, keys, value_dim, dtype=torch.float64)
    return Call(query, key, value, score, **settings)


def disagreements(
    call: Call, dtype: torch.dtype = torch.float32, backend: str = "triton", roundings: int = 0
) -> list[str]:
    """Return one line for each result whose error is larger than tests/bounds.py allows.

    Args:
        call: the call.
        dtype: the dtype of query, key and value.
        backend: the backend under test.
        roundings: how many more roundings are allowed, for calls of a few numbers, where the reference may be exact by
            chance. A row of little mass, near the edge of a compact kernel, is allowed more in proportion.
    """
    call = call._replace(
        query=call.query.to(dtype), key=call.key.to(dtype), value=call.value.to(dtype),
        score=copy.deepcopy(call.score).float() if isinstance(call.score, torch.nn.Module) else call.score,
        bias=None if call.bias is None else call.bias.float(),
    )  # fmt: skip
    exact = results(call, torch.float64, "reference")
    own, found = results(call, dtype, "reference"), results(call, dtype, backend)
    each = roundings * torch.finfo(torch.float32).eps
    if roundings and (mass := exact["log_mass"][exact["log_mass"].isfinite()]).numel():
        each *= float(mass.min().clamp(max=0).neg().exp())
    wrong = []
    for name, right in exact.items():
        largest = float(right[right.isfinite()].abs().max()) if right.isfinite().any() else 0.0
        allowed = bounds.band(right, bounds.error(own[name], right), found[name].dtype) + each * max(1.0, largest)
        measured = bounds.error(found[name], right)
        if not measured <= allowed:
            wrong.append(f"{name}: error {measured:.3g}, allowed {allowed:.3g}")
        if found[name].dtype != own[name].dtype:
            wrong.append(f"{name}: {found[name].dtype} instead of {own[name].dtype}")
    return wrong


def results(call: Call, dtype: torch.dtype, backend: str) -> dict[str, Tensor]:
    """Return output, log_mass and every gradient, computed in `dtype`."""
    leaves = {"query": call.query, "key": call.key, "value": call.value}
    leaves = {name: leaf.detach().to(dtype).requires_grad_() for name, leaf in leaves.items()}
    score, bias = call.score, call.bias
    if isinstance(score, torch.nn.Module):
        score = copy.deepcopy(score).to(torch.promote_types(dtype, torch.float32))
        leaves |= dict(score.named_parameters())
    if bias is not None:
        bias = bias.detach().to(torch.promote_types(dtype, torch.float32)).requires_grad_()
        leaves["bias"] = bias
    with dispatch_log() as ran:
        record = regard.inspect(
            *(leaves[x] for x in ("query", "key", "value")), score, call.mask, bias=bias, backend=backend
        )
    assert ran == [backend]
    with torch.random.fork_rng():
        torch.manual_seed(5)
        d_results = [torch.randn(x.shape, dtype=torch.float64) for x in (record.output, record.log_mass)]
    pairs = [(x, d.to(x)) for x, d in zip((record.output, record.log_mass), d_results, strict=True) if x.requires_grad]
    outputs, d_outputs = zip(*pairs, strict=True)
    grads = torch.autograd.grad(outputs, list(leaves.values()), d_outputs, allow_unused=True, materialize_grads=True)
    return {
        "output": record.output.detach(),
        "log_mass": record.log_mass.detach(),
        **dict(zip(leaves, grads, strict=True)),
    }
