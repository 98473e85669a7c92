"""Both directions at once are two of torch's own layers, with every gradient."""

import pytest
import torch
from torch import nn

from regard.translation.model.encoder import _at_once, _in_turn
from regard.translation.model.unrolled.bidirectional import run_both


def test_gradcheck():
    shapes = ((2, 3, 2, 6), (2, 6, 2), (2, 6))
    assert torch.autograd.gradcheck(run_both, [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes])


@pytest.mark.parametrize("source", [1, 5])
def test_they_are_torchs_layers(source):
    layers = [nn.GRU(3, 7, batch_first=True).double() for _ in range(2)]
    results = []
    for way in (_at_once, _in_turn):
        draw = torch.Generator().manual_seed(0)
        inputs = [torch.randn(2, source, 3, generator=draw, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        states = way(*layers, *inputs)
        aims = [torch.randn(2, source, 7, generator=draw, dtype=torch.float64) for _ in range(2)]
        total = sum((state * aim).sum() for state, aim in zip(states, aims, strict=True))
        parameters = [parameter for layer in layers for parameter in layer.parameters()]
        results.append((*states, *torch.autograd.grad(total, (*inputs, *parameters))))
    torch.testing.assert_close(*results, rtol=0, atol=1e-13)
