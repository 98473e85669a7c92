"""Compile multi-head layers with inductor, forward and backward, and compare them with the same layers in float64.

    python -m tests.layers.compiled [--device cuda] [--jobs 8] [--scores gaussian additive]

It covers every named score, 1, 2 and 8 heads, 7 and 600 tokens, without a mask, with lengths and with a causal mask. It
prints one line per score and number of heads, with the largest errors, and exits with 1 if a combination fails.
"""

import argparse
import copy
import itertools
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from torch import Tensor

from regard import Mask, MultiHeadAttention
from regard.scores.names import NAMED_SCORES, SIZED_SCORES

SCORES = sorted({*NAMED_SCORES, *SIZED_SCORES})
HEADS = (1, 2, 8)
TOKENS = (7, 600)
MASKS = ("none", "lengths", "causal")
DIM = 16
# Largest relative error against float64, in the L2 norm. Inductor sums in another order than the eager layer, so a
# result that cancels may have a larger error: up to FACTOR times that of the eager layer is allowed, or up to FACTOR
# times the change of the float64 result when every input and parameter changes by one rounding of float32.
ALLOWED, FACTOR = 1e-5, 4
# The derivatives of these kernels jump at the edge of their support: a distance there that rounds to the other side
# changes a gradient by a finite amount.
ALLOWED_WITH_EDGE = dict.fromkeys(("boxcar", "triangular", "epanechnikov", "cosine_kernel"), 1e-3)


def mask_of(name: str, tokens: int, device: str) -> Mask | None:
    """The mask of that name for a batch of two sequences."""
    if name == "lengths":
        return Mask.lengths(torch.tensor([tokens, tokens // 2], device=device))
    return Mask.causal() if name == "causal" else None


def disagreements(score: str, heads: int, mask: str, tokens: int, device: str = "cpu") -> list[str]:
    """The results of a compiled layer, output and gradients, that differ from those of the layer in float64."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = MultiHeadAttention(DIM, heads, score).to(device)
    source = torch.randn(2, tokens, DIM, device=device)
    nudged_layer, nudged_source = copy.deepcopy(layer).double(), _nudged(source)
    with torch.no_grad():
        for parameter in nudged_layer.parameters():
            parameter.copy_(_nudged(parameter))
    cotangent = torch.randn(2, tokens, DIM, device=device)
    given = mask_of(mask, tokens, device)

    def results(called: torch.nn.Module, dtype: torch.dtype, source: Tensor = source) -> list[Tensor]:
        leaf = source.to(dtype, copy=True).requires_grad_()
        output = called(leaf, mask=given)
        leaves = [leaf, *called.parameters()]
        return [output, *torch.autograd.grad(output, leaves, cotangent.to(dtype), materialize_grads=True)]

    names = ["output", "input", *(name for name, _ in layer.named_parameters())]
    exact = results(copy.deepcopy(layer).double(), torch.float64)
    nudged = results(nudged_layer, torch.float64, nudged_source)
    # A compiled caller may run another backend than an eager one: Gaussian scores on a CPU are dot products or tiles.
    in_tiles = copy.deepcopy(layer)
    in_tiles.backend = "blocked"
    eager, tiled = results(layer, torch.float32), results(in_tiles, torch.float32)
    compiled = results(torch.compile(layer), torch.float32)
    wrong = []
    for name, right, near, plain, tile, found in zip(names, exact, nudged, eager, tiled, compiled, strict=True):
        rounding = max(_relative_error(other, right) for other in (plain, tile, near))
        allowed = max(ALLOWED_WITH_EDGE.get(score, ALLOWED), FACTOR * rounding)
        error = _relative_error(found, right)
        if not error <= allowed:
            wrong.append(f"{name}: relative error {error:.2g}, allowed {allowed:.2g}")
    return wrong


def _nudged(tensor: Tensor) -> Tensor:
    """The tensor in float64, with each entry changed by one rounding of float32, up or down."""
    sign = torch.randint_like(tensor, 2) * 2 - 1
    return tensor.double() * (1 + torch.finfo(torch.float32).eps / 2 * sign)


def _relative_error(found: Tensor, exact: Tensor) -> float:
    """|found - exact| / |exact|, where |exact| counts as 0.1 at least: some gradients are 0 but for rounding."""
    return float((found - exact).norm() / exact.norm().clamp_min(0.1))


def _line(score: str, heads: int, device: str) -> tuple[str, bool]:
    """One score and number of heads over all masks and lengths, as a line of the report; and whether all is right."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    begin, failures, count = time.perf_counter(), [], 0
    for mask, tokens in itertools.product(MASKS, TOKENS):
        count += 1
        try:
            wrong = disagreements(score, heads, mask, tokens, device)
        except Exception as failure:
            wrong = [f"{type(failure).__name__}: {failure}".splitlines()[0][:200]]
        failures += [f"    mask {mask}, {tokens} tokens: {line}" for line in wrong]
    seconds = time.perf_counter() - begin
    verdict = f"{count} agree" if not failures else f"{len(failures)} FAILURES"
    return "\n".join([f"{score:17s} {heads} heads: {verdict} ({seconds:.0f} s)", *failures]), not failures


def main() -> int:
    """Run the grid and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--scores", nargs="*", default=SCORES)
    options = parser.parse_args()
    kind = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"torch {torch.__version__}, {kind}: layers of {DIM} dimensions, {TOKENS} tokens, masks {', '.join(MASKS)}")
    good = True
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(_line, *case, options.device) for case in itertools.product(options.scores, HEADS)]
        for job in jobs:
            line, is_right = job.result()
            print(line, flush=True)
            good &= is_right
    print("all agree" if good else "some FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
