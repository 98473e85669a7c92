"""MultiHeadAttention against nn.MultiheadAttention, self-attention, in training and in evaluation."""

import torch
from torch import nn

import regard
from benchmarks.measure import compare

# (batch, tokens, dim, heads)
SIZES = [(8, 16, 256, 8), (8, 64, 256, 8), (8, 128, 512, 8), (4, 512, 512, 8), (1, 2048, 512, 8)]


def run(device: str) -> list[dict]:
    """Rows for training (forward and backward, gradients to the input too) and evaluation (no gradients)."""
    return [row(*size, training=training, device=device) for size in SIZES for training in (True, False)]


def row(batch: int, tokens: int, dim: int, heads: int, training: bool, device: str) -> dict:
    """One comparison with the same weights on both sides."""
    theirs = nn.MultiheadAttention(dim, heads, batch_first=True, device=device).train(training)
    ours = regard.MultiHeadAttention.from_torch(theirs).train(training)
    x = torch.randn(batch, tokens, dim, device=device, requires_grad=training)

    def train(layer: nn.Module, output: torch.Tensor) -> None:
        torch.autograd.grad(output.sum(), (x, *layer.parameters()))

    def peer() -> None:
        output = theirs(x, x, x, need_weights=False)[0]
        if training:
            train(theirs, output)

    def library() -> None:
        output = ours(x)
        if training:
            train(ours, output)

    with torch.set_grad_enabled(training):
        difference = float((theirs(x, x, x, need_weights=False)[0] - ours(x)).detach().abs().max())
        timing = compare({"nn.MultiheadAttention": peer, "regard.MultiHeadAttention": library})
    size = {"batch": batch, "tokens": tokens, "dim": dim, "heads": heads}
    return {**size, "training": training, "difference": difference, **timing}
