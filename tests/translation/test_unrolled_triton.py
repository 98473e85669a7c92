"""The kernels are the equations: states, contexts and every gradient, within the band of float32."""

import pytest
import torch
from tests.bounds import assert_as_good
from tests.translation.test_unrolled import problem

from regard.translation.unrolled import ConditionalWeights, StepWeights, unroll

pytest.importorskip("triton")


def results(inputs, real, weights, cell, ops, dtype):
    """States, contexts and all gradients, in that dtype."""
    given = weights._asdict() | ({} if cell is None else cell._asdict())
    leaves = {
        name: tensor.detach().to(dtype).requires_grad_()
        for name, tensor in (dict(zip(("words", "state", "key", "value"), inputs, strict=True)) | given).items()
    }
    matrices = StepWeights(*(leaves[name] for name in StepWeights._fields))
    cell = None if cell is None else ConditionalWeights(*(leaves[name] for name in ConditionalWeights._fields))
    states, contexts = unroll(*list(leaves.values())[:4], real, matrices, cell, ops=ops)
    draw = torch.Generator().manual_seed(0)
    sums = [
        (found * torch.randn(found.shape, generator=draw, dtype=torch.float64).to(dtype)).sum()
        for found in (states, contexts)
    ]
    torch.stack(sums).sum().backward()
    return {"states": states, "contexts": contexts} | {name: leaf.grad for name, leaf in leaves.items()}


@pytest.mark.parametrize("conditional", [False, True], ids=["bahdanau", "conditional"])
@pytest.mark.parametrize(
    "sizes",
    [
        {"lengths": [5, 1, 3]},
        {"batch": 2, "source": 1, "target": 1, "size": 3, "hidden": 2, "dim": 5},
        {"batch": 2, "source": 67, "target": 2, "size": 5, "hidden": 47, "dim": 53, "lengths": [67, 41]},
        {"batch": 1, "source": 17, "target": 2, "size": 263, "hidden": 3, "dim": 5},
    ],
    ids=["lengths", "ones", "several blocks of the score", "several blocks of the state"],
)
def test_kernels_are_as_good_as_the_equations(sizes, conditional):
    *inputs, real, weights, cell = problem(**sizes, conditional=conditional)
    truth = results(inputs, real, weights, cell, "torch", torch.float64)
    equations = results(inputs, real, weights, cell, "torch", torch.float32)
    kernels = results(inputs, real, weights, cell, "triton", torch.float32)
    for name, wanted in truth.items():
        assert_as_good(kernels[name], equations[name], wanted, name)
