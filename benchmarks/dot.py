"""What `attend` costs beside calling scaled_dot_product_attention directly, from tiny to long inputs."""

import itertools

import torch
from torch import Tensor
from torch.nn import functional

import regard
from benchmarks.measure import compare
from regard import Mask

TINY = (2, 4, 8, 16)
LONG = [(2, 8, 512, 64), (1, 8, 1024, 64), (1, 8, 2048, 64)]


def run(device: str) -> list[dict]:
    """Rows of peer and library."""
    rows = [row(TINY, mask, False, device) for mask in ("none", "causal", "lengths")]
    cases = itertools.product(LONG, ("none", "causal", "lengths"), (False, True))
    rows += [row(*case, device) for case in cases]
    return rows


def row(shape: tuple[int, ...], mask: str, backward: bool, device: str) -> dict:
    """One comparison at (batch, heads, tokens, dim)."""
    query, key, value = (torch.randn(shape, device=device, requires_grad=backward) for _ in range(3))
    lengths = torch.tensor([shape[2] * 3 // 4, shape[2]], device=device)[: shape[0]]
    padding = (torch.arange(shape[2], device=device) < lengths[:, None])[:, None, None, :]
    theirs = {"none": {}, "causal": {"is_causal": True}, "lengths": {"attn_mask": padding}}[mask]
    ours = {"none": None, "causal": Mask.causal(), "lengths": Mask.lengths(lengths)}[mask]

    def finish(output: Tensor) -> None:
        if backward:
            torch.autograd.grad(output.sum(), (query, key, value))

    timing = compare(
        {
            "scaled_dot_product_attention": lambda: finish(
                functional.scaled_dot_product_attention(query, key, value, **theirs)
            ),
            "regard.attend": lambda: finish(regard.attend(query, key, value, mask=ours)),
        }
    )
    padded = {"lengths": lengths.tolist()} if mask == "lengths" else {}
    return {"shape": list(shape), "mask": mask, "backward": backward, **padded, **timing}
