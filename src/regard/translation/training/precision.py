"""How exact the products of float32 numbers are while a training runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Within it a GPU's float32 products are as exact as the recipe says; then as before."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
