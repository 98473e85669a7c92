"""The map: attention at every length against the best textbook form, `python -m benchmarks map [--cuda]`.

It covers scores, lengths from one query to 8,192 tokens, widths, forward and both directions, eager calls, calls inside
a caller's torch.compile, and on a GPU calls replayed by a CUDA graph. A ratio above 1 means that regard is faster than
the best textbook form, eager or compiled. The size thresholds of `dispatch.order` are read off this map.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

import regard
from benchmarks.additive import compiled, textbook, textbook_product
from benchmarks.measure import compare, recorded, relative_error
from regard.scores import Additive, Epanechnikov, Gaussian, Laplacian, ScaledDot

Form = Callable[..., Tensor]
# (queries, keys) of one example; one query is the step of a decoder.
LENGTHS = {
    "cpu": [(1, 20), (1, 256), (8, 8), (20, 20), (32, 32), (64, 64), (128, 128), (256, 256), (512, 512), (1024, 1024)],
    "cuda": [
        (1, 20),
        (1, 1024),
        *((n, n) for n in (8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)),
    ],
}
# Pairs of tokens in one call, as far as the largest batch allows.
PAIRS, MAX_BATCH = {"cpu": 2**19, "cuda": 2**24}, {"cpu": 32, "cuda": 256}
# Elements of the largest tensor of a textbook form; a form that would have more is left out.
MAX_ELEMENTS = {"cpu": 2**28, "cuda": 2**33}
# A call has float64 results to compare with if they have at most this many elements.
MAX_JUDGED_ELEMENTS = 2**26


class Subject(NamedTuple):
    """A score and its textbook forms.

    Attributes:
        name: name of the score.
        width: size of queries and keys, and of the hidden units of an additive score.
        value_dim: size of values.
        make: returns the score.
        forms: textbook forms by name; they take query, key, value and the score.
        elements: how many numbers a textbook form holds for each pair.
    """

    name: str
    width: int
    value_dim: int
    make: Callable[[], regard.scores.Score]
    forms: dict[str, Form]
    elements: int


def gaussian_by_cdist(query: Tensor, key: Tensor, value: Tensor, bandwidth: float) -> Tensor:
    """Return Gaussian attention with distances by cdist."""
    return functional.softmax(-torch.cdist(query, key).square() / (2 * bandwidth**2), -1) @ value


def gaussian_by_key_bias(query: Tensor, key: Tensor, value: Tensor, bandwidth: float) -> Tensor:
    """Return Gaussian attention as dot products with the bias -|k|^2 / (2 h^2) for each key."""
    bias = -key.square().sum(-1).unsqueeze(-2) / (2 * bandwidth**2)
    return functional.scaled_dot_product_attention(query, key, value, bias, scale=1 / bandwidth**2)


def laplacian_by_cdist(query: Tensor, key: Tensor, value: Tensor, bandwidth: float) -> Tensor:
    """Return Laplacian attention with distances by cdist."""
    return functional.softmax(-torch.cdist(query, key) / bandwidth, -1) @ value


def epanechnikov_by_cdist(query: Tensor, key: Tensor, value: Tensor, bandwidth: float) -> Tensor:
    """Return attention by the Epanechnikov kernel with distances by cdist."""
    kernel = (1 - torch.cdist(query, key).square() / bandwidth**2).clamp(min=0)
    return kernel @ value / kernel.sum(-1, keepdim=True).clamp(min=1e-30)


def dot_product(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return scaled dot product attention by torch."""
    return functional.scaled_dot_product_attention(query, key, value)


def subjects() -> list[Subject]:
    """Return all scores of the map. A bandwidth is such that typical keys get a share of the weight."""
    additive = {"sum": textbook, "product": textbook_product}
    found = [
        Subject(f"additive, hidden {hidden}", hidden, 64, partial(Additive.of_projected, hidden), additive, hidden)
        for hidden in (64, 256, 512)
    ]
    by_kernel = {
        "Gaussian": (Gaussian, 1.0, {"cdist": gaussian_by_cdist, "key bias": gaussian_by_key_bias}),
        "Laplacian": (Laplacian, 1.0, {"cdist": laplacian_by_cdist}),
        "Epanechnikov": (Epanechnikov, 2.0, {"cdist": epanechnikov_by_cdist}),
    }
    for name, (kernel, factor, forms) in by_kernel.items():
        for dim in (3, 64):
            bandwidth = factor * dim**0.5 / 2
            bound = {form: partial(function, bandwidth=bandwidth) for form, function in forms.items()}
            found.append(Subject(f"{name}, dim {dim}", dim, 64, partial(kernel, bandwidth), bound, 1))
    found.append(Subject("dot product, dim 64", 64, 64, ScaledDot, {"SDPA": dot_product}, 1))
    return found


def run(device: str, only: str = "") -> list[dict]:
    """Return the rows of the map.

    Args:
        device: "cpu" or "cuda".
        only: time only scores whose name contains this text.
    """
    rows = []
    for subject in subjects():
        if only not in subject.name:
            continue
        for training in (False, True):
            # One program serves all lengths, as it does for a caller with sentences of several lengths.
            programs = {f"{name}, compiled": _compiled(form) for name, form in subject.forms.items()}
            own = compiled(regard.attend, dynamic=True)
            for queries, keys in LENGTHS[device]:
                rows += _cell(subject, queries, keys, training, device, programs, own)
    return rows


def _compiled(form: Form) -> Form:
    if isinstance(form, partial):
        return partial(compiled(form.func, dynamic=True), **form.keywords)
    return compiled(form, dynamic=True)


def _cell(
    subject: Subject, queries: int, keys: int, training: bool, device: str, programs: dict[str, Form], own: Form
) -> list[dict]:
    """Return one row for each way to call: eager, compiled, and on a GPU replayed."""
    batch = max(min(PAIRS[device] // (queries * keys), MAX_BATCH[device]), 1)
    pairs = batch * queries * keys
    if pairs * subject.elements > MAX_ELEMENTS[device]:
        return []
    torch.manual_seed(0)
    score = subject.make().to(device)
    shapes = (batch, queries, subject.width), (batch, keys, subject.width), (batch, keys, subject.value_dim)
    inputs = [torch.randn(shape, device=device, requires_grad=training) for shape in shapes]
    extra = (score.weight,) if isinstance(score, Additive) else ()
    leaves = [*inputs, *extra]

    def call(function: Form, *arguments: object) -> Callable[[], Tensor | list[Tensor]]:
        if not training:
            return torch.no_grad()(lambda: function(*arguments))
        return lambda: list(torch.autograd.grad(function(*arguments).sum(), leaves))

    eager = {name: call(form, *inputs, *extra) for name, form in subject.forms.items()}
    by_program = {name: call(form, *inputs, *extra) for name, form in programs.items()}
    size = {"score": subject.name, "batch": batch, "queries": queries, "keys": keys, "training": training}
    size |= {"backend": regard.why(*inputs, score).backend, "error": _error(inputs, score, pairs * subject.elements)}
    ways = {
        "eager": (call(regard.attend, *inputs, score), eager | by_program),
        "compiled": (call(own, *inputs, score), by_program),
    }
    if device == "cuda":
        ways["graph"] = (recorded(ways["eager"][0]), {name: recorded(peer) for name, peer in eager.items()})
    rows = []
    for way, (ours, peers) in ways.items():
        timing = compare({"regard": ours, **peers})
        medians = {name: times["median"] for name, times in timing["seconds"].items()}
        best = min(peers, key=lambda name: medians[name])
        rows.append(size | {"way": way, "best": best, "ratio_to_best": medians[best] / medians["regard"]} | timing)
    return rows


def _error(inputs: list[Tensor], score: regard.scores.Score, elements: int) -> float | None:
    """Return the relative error of the output against float64, or None if the float64 result would be too large."""
    if elements > MAX_JUDGED_ELEMENTS:
        return None
    with torch.no_grad():
        wide = score.double() if any(True for _ in score.parameters()) else score
        exact = regard.attend(*(x.double() for x in inputs), wide, backend="reference")
        error = relative_error(regard.attend(*inputs, score.float()), exact)
    return error if math.isfinite(error) else None
