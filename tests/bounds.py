"""The tolerance of DESIGN, "How we know", in one place: measured against float64, never chosen by hand.

error <= 2 x (the reference's own error in that dtype + 4 ulp of the largest entry), max norm.
"""

import math

import torch
from torch import Tensor

FACTOR = 2
ULPS = 4


def ulp(exact: Tensor, dtype: torch.dtype) -> float:
    """The spacing of `dtype` at the largest finite entry."""
    largest = _largest(exact)
    if not largest:
        return torch.finfo(dtype).tiny
    return max(torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(largest)), torch.finfo(dtype).smallest_normal)


def error(found: Tensor, exact: Tensor) -> float:
    """The largest difference; infinite where one is NaN, or minus infinity and the other is not."""
    found, exact = found.detach().double(), exact.detach().double()
    if found.shape != exact.shape or not torch.equal(found.isneginf(), exact.isneginf()):
        return math.inf
    largest = _largest(torch.where(exact.isneginf(), 0.0, found - exact))
    return math.inf if math.isnan(largest) else largest


def band(exact: Tensor, own_error: float, dtype: torch.dtype) -> float:
    """The error allowed to a backend, where the reference makes `own_error` itself."""
    return FACTOR * (own_error + ULPS * ulp(exact, dtype))


def roundings(exact: Tensor, terms: int, dtype: torch.dtype = torch.float64) -> float:
    """What `terms` roundings can add up to, each half an ulp of the largest entry, which is at least 1.

    The oracle judges the reference by this: there is nothing more exact than the two of them.
    """
    return terms * torch.finfo(dtype).eps / 2 * max(1.0, _largest(exact))


def assert_close(found: Tensor, exact, allowed: float, what: str = "result") -> None:
    """Fail with both numbers when the error exceeds what is allowed."""
    measured = error(found, torch.as_tensor(exact))
    assert measured <= allowed, f"{what}: error {measured:.3g}, allowed {allowed:.3g}"


def assert_as_good(found: Tensor, reference: Tensor, exact: Tensor, what: str = "result") -> None:
    """Fail unless `found` is as near to the float64 result as the reference in the same dtype, within the band."""
    assert_close(found, exact, band(exact, error(reference, exact), found.dtype), what)


def assert_same(found: Tensor, wanted: Tensor, dtype: torch.dtype | None = None, what: str = "result") -> None:
    """Two routes to one number, both of them rounded in `dtype`: the band of a reference without error."""
    dtype = dtype or found.dtype
    assert_close(found, wanted, band(wanted.detach().double(), 0.0, dtype), what)


def assert_same_sums(found: Tensor, wanted: Tensor, what: str = "gradient") -> None:
    """Two routes to sums over batch, tokens and sizes, in another order, relative to their largest entry."""
    size = wanted.detach().abs().max()
    assert_close(found / size, wanted / size, roundings(wanted / size, 64, found.dtype), what)


def _largest(tensor: Tensor) -> float:
    finite = tensor.detach().double()[~torch.isneginf(tensor)]
    return finite.abs().max().item() if finite.numel() else 0.0
