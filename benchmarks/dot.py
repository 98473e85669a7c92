"""What `attend` costs beside calling scaled_dot_product_attention directly, from tiny to long inputs."""

import itertools
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import regard
from benchmarks.measure import compare, recorded
from regard import Mask

TINY = (2, 4, 8, 16)
LONG = [(2, 8, 512, 64), (1, 8, 1024, 64), (1, 8, 2048, 64)]
# A GPU waits for the host at the first of these sizes.
LONG_ON = {"cpu": LONG, "cuda": [*LONG, (16, 8, 512, 64)]}
READY, MAKING = "scaled_dot_product_attention", "scaled_dot_product_attention, making its mask"
# Padding: a mask that is ready, the same for many calls, as in the layers of a model; or made of lengths in every call.
PEERS = {"none": (READY,), "causal": (READY,), "lengths": (READY, MAKING)}
Call = Callable[[Tensor, Tensor, Tensor], Tensor]


def run(device: str) -> list[dict]:
    """Rows of peer and library."""
    long = list(itertools.product(LONG_ON[device], PEERS, (False, True)))
    cases = [(TINY, mask, False) for mask in PEERS] + long
    rows = [row(*case, device, peer) for case in cases for peer in PEERS[case[1]]]
    return rows + ([row(*case, device, READY, captured=True) for case in long] if device == "cuda" else [])


def row(shape: tuple[int, ...], mask: str, backward: bool, device: str, peer: str, *, captured: bool = False) -> dict:
    """One comparison at (batch, heads, tokens, dim); captured: each peer in a CUDA graph, without its host."""
    inputs = [torch.randn(shape, device=device, requires_grad=backward) for _ in range(3)]
    lengths = torch.tensor([shape[2] * 3 // 4, shape[2]], device=device).repeat(shape[0])[: shape[0]]
    calls = {peer: direct(mask, peer, lengths, shape[2]), "regard.attend": library(mask, peer, lengths)}

    def finish(call: Call) -> None:
        output = call(*inputs)
        if backward:
            torch.autograd.grad(output.sum(), inputs)

    timed = {name: partial(finish, call) for name, call in calls.items()}
    timing = compare({name: recorded(call) for name, call in timed.items()} if captured else timed)
    padded = {"lengths": lengths.tolist()} if mask == "lengths" else {}
    return {"shape": list(shape), "mask": mask, "backward": backward, "captured": captured, **padded, **timing}


def direct(mask: str, peer: str, lengths: Tensor, keys: int) -> Call:
    """The call without the library."""
    if mask == "none":
        return lambda query, key, value: scaled_dot_product_attention(query, key, value)
    if mask == "causal":
        return lambda query, key, value: scaled_dot_product_attention(query, key, value, is_causal=True)
    if peer == READY:
        ready = padding(lengths, keys)
        return lambda query, key, value: scaled_dot_product_attention(query, key, value, attn_mask=ready)
    return lambda query, key, value: scaled_dot_product_attention(query, key, value, attn_mask=padding(lengths, keys))


def library(mask: str, peer: str, lengths: Tensor) -> Call:
    """The call with the library: its mask is said once, unless the peer makes its own in every call."""
    if peer == MAKING:
        return lambda query, key, value: regard.attend(query, key, value, mask=Mask.lengths(lengths))
    said = {"none": None, "causal": Mask.causal(), "lengths": Mask.lengths(lengths)}[mask]
    return lambda query, key, value: regard.attend(query, key, value, mask=said)


def padding(lengths: Tensor, keys: int) -> Tensor:
    """The attn_mask of lengths, bool (batch, 1, 1, keys)."""
    return (torch.arange(keys, device=lengths.device) < lengths[:, None])[:, None, None, :]
