"""Assertions about errors, with the tolerance of `regard.testing`: measured against float64, never chosen by hand.

error <= 2 x (the reference's own error in that dtype + 4 ulp of the largest entry), max norm.
"""

import torch
from torch import Tensor

from regard.testing import allowed_error, error, largest_entry


def band(exact: Tensor, own_error: float, dtype: torch.dtype) -> float:
    """The error allowed to a backend, where the reference makes `own_error` itself."""
    return allowed_error(exact, own_error, dtype)


def roundings(exact: Tensor, terms: int, dtype: torch.dtype = torch.float64) -> float:
    """What `terms` roundings can add up to, each half an ulp of the largest entry, which is at least 1.

    The oracle judges the reference by this: there is nothing more exact than the two of them.
    """
    return terms * torch.finfo(dtype).eps / 2 * max(1.0, largest_entry(exact))


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
