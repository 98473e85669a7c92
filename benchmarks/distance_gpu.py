"""Distances on a GPU: exact Gaussian pooling in pairs a second, and Gaussian attention against its peers in float32."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

import regard
from benchmarks.measure import compare, relative_error

FORWARD, BACKWARD = (100_000, 300_000, 1_000_000), (100_000, 300_000)
JUDGED_ROWS = 256
BATCH, TOKENS, DIM = 8, 4096, 64
KEOPS = "KeOps 2.3 crashes on this machine's CUDA 13: no figure"


def run(device: str) -> list[dict]:
    """Rows for a GPU; a CPU has its own suites."""
    if device != "cuda":
        return []
    rows = [pooled(points, False, device) for points in FORWARD]
    rows += [pooled(points, True, device) for points in BACKWARD]
    return [*rows, *(attention(backward, device) for backward in (False, True))]


def pooled(points: int, backward: bool, device: str) -> dict:
    """Exact Gaussian regression in three dimensions, as many queries as keys, one value, with log_mass (eq. 4)."""
    torch.manual_seed(0)
    query, key = (torch.rand(points, 3, device=device) for _ in range(2))
    value = torch.randn(points, 1, device=device)
    score = regard.scores.Gaussian(0.1, learnable=backward).to(device)
    leaves = [query, key, value, *score.parameters()]
    leaves = [leaf.requires_grad_() for leaf in leaves] if backward else leaves

    def library() -> list[Tensor]:
        record = regard.inspect(query, key, value, score, backend="triton")
        result = [record.output, record.log_mass]
        return [*result, *(torch.autograd.grad(record.output.sum(), leaves) if backward else ())]

    with torch.set_grad_enabled(backward):
        output, log_mass = (x.detach()[:JUDGED_ROWS] for x in library()[:2])
        timing = compare({"regard.inspect": library})
    with torch.no_grad():
        squared = (query[:JUDGED_ROWS, None].double() - key.double()).square().sum(-1)
        exact = torch.softmax(-squared / 0.02, -1) @ value.double()
        errors = [relative_error(output, exact), relative_error(log_mass, (-squared / 0.02).logsumexp(-1))]
    rate = points**2 / timing["seconds"]["regard.inspect"]["median"]
    kind = {"kind": "pooled", "points": points, "backward": backward}
    return {**kind, "pairs_a_second": rate, "errors": {"regard.inspect": errors}, "keops": KEOPS, **timing}


def attention(backward: bool, device: str) -> dict:
    """Gaussian attention: cdist, softmax and a product, by eager torch and compiled; flex_attention; regard."""
    torch.manual_seed(0)
    leaves = [torch.randn(BATCH, TOKENS, DIM, device=device, requires_grad=backward) for _ in range(3)]
    bandwidth = DIM**0.25  # the scale of scaled dot products: q'k / sqrt(dim)
    score = regard.scores.Gaussian(bandwidth)
    compiled = torch.compile(textbook)
    flexible = torch.compile(flex_attention)
    forwards = {
        "cdist, softmax, bmm": lambda: textbook(*leaves, bandwidth),
        "torch.compile of it": lambda: compiled(*leaves, bandwidth),
        "flex_attention, key bias": lambda: flex(flexible, *leaves, bandwidth),
        "regard.attend": lambda: regard.attend(*leaves, score, backend="triton"),
    }

    def calling(forward: Callable[[], Tensor]) -> Callable[[], list[Tensor]]:
        def call() -> list[Tensor]:
            output = forward()
            return [output, *(torch.autograd.grad(output.sum(), leaves) if backward else ())]

        return call

    calls = {name: calling(forward) for name, forward in forwards.items()}
    with torch.set_grad_enabled(backward):
        exact_leaves = [leaf.detach().double().requires_grad_(backward) for leaf in leaves]
        output = textbook(*exact_leaves, bandwidth)
        exact = [output.detach(), *(torch.autograd.grad(output.sum(), exact_leaves) if backward else ())]
        del output
        errors, missing = {}, {}
        for name, call in list(calls.items()):
            try:
                errors[name] = [relative_error(got, want) for got, want in zip(call(), exact, strict=True)]
            except (RuntimeError, NotImplementedError) as error:
                # A peer may not know this call, and its column says so; our own failure is a failure.
                if name == "regard.attend":
                    raise
                missing[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
                del calls[name]
        timing = compare(calls)
    seconds = timing["seconds"]
    best = min(times["median"] for name, times in seconds.items() if name != "regard.attend")
    size = {"kind": "attention", "batch": BATCH, "tokens": TOKENS, "dim": DIM, "value_dim": DIM, "backward": backward}
    return {
        **size,
        "times_best_peer": best / seconds["regard.attend"]["median"],
        "errors": errors,
        "missing": missing,
        **timing,
    }


def textbook(query: Tensor, key: Tensor, value: Tensor, bandwidth: float) -> Tensor:
    """Eq. 3 with the Gaussian of eq. 5, as one writes it."""
    scores = torch.cdist(query, key).square() / (-2 * bandwidth**2)
    return scores.softmax(-1) @ value


def flex(attention: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, bandwidth: float) -> Tensor:
    """The same through the inner product: |q|^2 falls out of the softmax, |k|^2 is a bias for each key."""
    bias = key.square().sum(-1) / (-2 * bandwidth**2)

    def add(score: Tensor, batch: Tensor, head: Tensor, at: Tensor, to: Tensor) -> Tensor:
        return score + bias[batch, to]

    query, key, value = (x.unsqueeze(1) for x in (query, key, value))
    return attention(query, key, value, score_mod=add, scale=1 / bandwidth**2).squeeze(1)
