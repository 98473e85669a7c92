"""Any call of the operator: small, of any score, mask, bias, dtype and shape, and how far off its results may be."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from tests import bounds, oracle
from tests.contracts.cases import HEADS, POSITIONED, SCORES
from torch import Tensor

import regard
from regard import Mask
from regard.backends.blocked.additive import TANH_ERROR
from regard.checks import accumulation_dtype
from regard.scores.names import ScoreLike

CALLABLE = "callable"
COMPACT = ("boxcar", "triangular", "epanechnikov", "tricube", "biweight", "cosine_kernel")
NAMES = (*SCORES, *POSITIONED, CALLABLE)
MASKS = ("none", "causal", "window", "lengths", "per query", "keep", "keys", "documents")
BIASES = ("none", "full", "keys", "queries", "callable")
VALUE_DIM = 3
ROUNDINGS = 16  # that are allowed behind each number; a wrong tile, factor or mask is off by thousands

Results = dict[str, Tensor]


class AnyCall(NamedTuple):
    """What is drawn of a call; the numbers come from the seed.

    joined: how a second mask is put to the first: "and", "or", "without", or "" for none. shared: whether queries,
    keys or values have size 1 along the last batch axis. grid: tokens are multiples of 1/8, so that keys coincide,
    and a pair lies on the edge of a kernel or far from it.
    """

    score: str
    masks: tuple[str, str]
    joined: str
    bias: str
    dtype: torch.dtype
    batch: tuple[int, ...]
    shared: str
    queries: int
    keys: int
    spread: float
    grid: bool
    seed: int


class Made(NamedTuple):
    """The numbers of a call in float64, each rounded to the dtype of the call; allowed: (*batch, queries, keys)."""

    query: Tensor
    key: Tensor
    value: Tensor
    score: ScoreLike
    mask: Mask | None
    allowed: Tensor
    bias: Tensor | Callable[[Tensor, Tensor], Tensor] | None
    grad_output: Tensor
    grad_log_mass: Tensor


def make(call: AnyCall) -> Made:
    """Draw the numbers."""
    draw = torch.Generator().manual_seed(call.seed)
    batch = (*call.batch, HEADS) if "per head" in call.score else call.batch
    case = SCORES.get(call.score)
    dims = (6, 6) if case is None else (case.query_dim, case.key_dim)

    def normal(*shape: int, spread: float = 1.0, grid: bool = False) -> Tensor:
        drawn = spread * torch.randn(shape, generator=draw, dtype=torch.float64)
        return ((8 * drawn).round() / 8 if grid else drawn).to(call.dtype).double()

    def axes(name: str) -> tuple[int, ...]:
        return (*batch[:-1], 1) if batch and call.shared == name else batch

    query = normal(*axes("query"), call.queries, dims[0], spread=call.spread, grid=call.grid)
    key = normal(*axes("key"), call.keys, dims[1], spread=call.spread, grid=call.grid)
    value = normal(*axes("value"), call.keys, VALUE_DIM)
    sizes = batch, call.queries, call.keys
    mask, allowed = _mask(call.masks[0], *sizes, draw)
    if call.joined:
        mask, allowed = _joined(call.joined, mask, allowed, *_mask(call.masks[1], *sizes, draw))
    shapes = {"full": (*batch, call.queries, call.keys), "keys": (call.keys,), "queries": (call.queries, 1)}
    bias = normal(*shapes[call.bias]) if call.bias in shapes else _near if call.bias == "callable" else None
    torch.manual_seed(call.seed)  # for the score's parameters
    score = _product if call.score == CALLABLE else POSITIONED[call.score]() if case is None else case.build()
    if isinstance(score, torch.nn.Module):
        score = score.to(call.dtype).double()
    grads = normal(*batch, call.queries, VALUE_DIM), normal(*batch, call.queries)
    return Made(query, key, value, score, mask, allowed.expand(*batch, call.queries, call.keys), bias, *grads)


def results(made: Made, backend: str, dtype: torch.dtype, *, log_mass: bool = True) -> Results:
    """Output, log_mass and every gradient by one backend in `dtype`."""
    leaves = {name: getattr(made, name).to(dtype).requires_grad_() for name in ("query", "key", "value")}
    score, bias = made.score, made.bias
    if isinstance(score, torch.nn.Module):
        leaves |= dict(in_dtype(score, dtype).named_parameters())
    if isinstance(bias, Tensor):
        bias = bias.to(dtype).requires_grad_(log_mass)
        leaves |= {"bias": bias} if log_mass else {}
    inputs = leaves["query"], leaves["key"], leaves["value"], score, made.mask
    if log_mass:
        record = regard.inspect(*inputs, bias=bias, backend=backend)
        found = {"output": record.output, "log_mass": record.log_mass}
    else:
        found = {"output": regard.attend(*inputs, bias=bias, backend=backend)}
    given = {"output": made.grad_output, "log_mass": made.grad_log_mass}
    known = [(x, given[name].to(x)) for name, x in found.items() if x.requires_grad]
    outputs, cotangents = zip(*known, strict=True)
    grads = torch.autograd.grad(outputs, list(leaves.values()), cotangents, allow_unused=True, materialize_grads=True)
    return {name: x.detach() for name, x in found.items()} | dict(zip(leaves, grads, strict=True))


def in_dtype(score: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """The score, turned only where it must be.

    `Module.to` writes to parameters even where nothing changes. Where another thread computes with one of them at that
    moment, torch 2.13 stands still for ever: one waits for the parameter's lock, the other, with it, for the GIL.
    """
    return score.to(dtype) if any(parameter.dtype != dtype for parameter in score.parameters()) else score


def disagreements(call: AnyCall, backend: str) -> Iterator[str]:
    """One line for each result that is further from float64 than its roundings, and further than the band."""
    made, log_mass = make(call), backend != "torch"
    exact = results(made, "reference", torch.float64, log_mass=log_mass)
    found = results(made, backend, call.dtype, log_mass=log_mass)
    each, own = slack(call, made, exact.get("log_mass")), None
    for name, right in exact.items():
        precise = name in ("output", "log_mass")
        dtype = accumulation_dtype(call.dtype) if name == "log_mass" else call.dtype
        if found[name].dtype != dtype:
            yield f"{name}: {found[name].dtype} instead of {dtype}"
        measured = bounds.error(found[name], right)
        allowed = each["pooled" if precise else "gradient"] + bounds.band(right, 0.0, dtype)
        if measured <= allowed:
            continue
        own = own or results(made, "reference", call.dtype, log_mass=log_mass)
        allowed += bounds.band(right, bounds.error(own[name], right), dtype)
        if not measured <= allowed:
            yield f"{name}: error {measured:.3g}, allowed {allowed:.3g}"


def slack(call: AnyCall, made: Made, log_mass: Tensor | None = None) -> dict[str, float]:
    """What roundings may add up to: a score's own, carried through softmax into what is pooled and its gradients.

    log_mass: where it is known. Near its edge a compact kernel is the difference of numbers of size 1: a row that sees
    little of it knows its mass to so many roundings more.
    """
    eps, coarse = (torch.finfo(dtype).eps for dtype in (accumulation_dtype(call.dtype), call.dtype))
    largest = 1 + made.query.abs().max().item() + made.key.abs().max().item()
    terms = 4 + largest**2 * made.query.shape[-1]
    if isinstance(made.bias, Tensor):
        terms += made.bias.abs().max().item()
    each = TANH_ERROR if call.score.startswith("additive") else ROUNDINGS
    off = each * eps * terms
    if call.score.startswith(COMPACT) and log_mass is not None and log_mass.isfinite().any():
        weight = made.bias.abs().max().item() if isinstance(made.bias, Tensor) else 0.0
        off *= math.exp(max(0.0, weight - log_mass[log_mass.isfinite()].min().item()))
    value, keys = made.value.abs().max().item(), made.key.shape[-2]
    pulled = made.grad_output.abs().sum().item() * value + made.grad_log_mass.abs().sum().item()
    return {"pooled": off * max(1.0, value), "gradient": (off + ROUNDINGS * coarse) * pulled * largest * keys**0.5}


def judged(call: AnyCall) -> list[str]:
    """What the reference in float64 gets wrong of output and log_mass, by the oracle."""
    made = make(call._replace(dtype=torch.float64))
    record = regard.inspect(*made[:5], bias=made.bias, backend="reference")
    formula = _formula(made.score) if call.score == CALLABLE else SCORES[call.score].formula(made.score)
    tokens = (x.numpy() for x in (made.query, made.key, made.value))
    bias = made.bias
    if callable(bias):
        bias = bias(torch.arange(call.queries), torch.arange(call.keys))
    bias = None if bias is None else bias.double().numpy()
    right = oracle.pool_batch(formula, *tokens, made.allowed.numpy(), bias)
    allowed = slack(call._replace(dtype=torch.float64), made, torch.from_numpy(right.log_mass))["pooled"]
    pairs = {"output": (record.output, right.output), "log_mass": (record.log_mass, right.log_mass)}
    errors = {name: bounds.error(found, torch.from_numpy(exact)) for name, (found, exact) in pairs.items()}
    return [f"{name}: error {error:.3g}, allowed {allowed:.3g}" for name, error in errors.items() if error > allowed]


def _product(query: Tensor, key: Tensor) -> Tensor:
    return (query @ key.mT).tanh()


def _formula(score: ScoreLike) -> Callable:
    assert score is _product
    return lambda q, k: torch.tensor(oracle.dot(q, k), dtype=torch.float64).tanh().item()


def _near(queries: Tensor, keys: Tensor) -> Tensor:
    return -0.25 * (queries[:, None] - keys).abs().float()


def _mask(
    word: str, batch: tuple[int, ...], queries: int, keys: int, draw: torch.Generator
) -> tuple[Mask | None, Tensor]:
    """A mask in words, and what it allows, written out."""
    ahead = torch.arange(keys) - torch.arange(queries)[:, None]

    def whole(most: int, *shape: int) -> Tensor:
        return torch.randint(most + 1, shape, generator=draw)

    match word:
        case "causal":
            return Mask.causal(align="lower_right"), ahead <= keys - queries
        case "window":
            return Mask.window(1, 2, align="top_left"), (ahead >= -1) & (ahead <= 2)
        case "lengths":
            lengths = whole(keys, *batch)
            return Mask.lengths(lengths), torch.arange(keys) < lengths[..., None, None]
        case "per query":
            lengths = whole(keys, *batch, queries)
            return Mask.lengths_per_query(lengths), torch.arange(keys) < lengths[..., None]
        case "keep":
            kept = whole(2, *batch, queries, keys) > 0
            return Mask.keep(kept), kept
        case "keys":
            kept = whole(2, *batch, keys) > 0
            return Mask.keys(kept), kept[..., None, :]
        case "documents":
            ids = whole(2, *batch, queries), whole(2, *batch, keys)
            return Mask.documents(*ids), ids[0][..., None] == ids[1][..., None, :]
    return None, torch.ones(queries, keys, dtype=torch.bool)


def _joined(
    how: str, mask: Mask | None, allowed: Tensor, other: Mask | None, others: Tensor
) -> tuple[Mask | None, Tensor]:
    if mask is None or other is None:
        return mask, allowed
    match how:
        case "and":
            return mask & other, allowed & others
        case "or":
            return mask | other, allowed | others
    return mask & ~other, allowed & ~others
