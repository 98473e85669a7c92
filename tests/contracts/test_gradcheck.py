"""Every gradient against finite differences in float64, away from kinks; kinks have tests of their own."""

import pytest
import torch
from tests.contracts.cases import HEADS, SCORES
from torch.autograd import gradcheck, gradgradcheck

import regard
from regard.backends.blocked import checkpointed
from regard.backends.blocked.sweep import Sweep
from regard.scores.names import KERNELS

BACKENDS = ("reference", "blocked")
SEEN = regard.Mask.keep(torch.tensor([[True, False, True], [False, True, True]]))


@pytest.fixture(autouse=True)
def _tiny_tiles(monkeypatch):
    """One query by two keys: every case has four tiles, two of them ragged."""
    monkeypatch.setattr(Sweep, "_tile_shape", lambda self: (1, 2))
    monkeypatch.setitem(checkpointed.BLOCK_ELEMENTS, "cpu", 1)


def randn(*shape, scale=1.0):
    return (scale * torch.randn(shape, dtype=torch.float64)).requires_grad_()


def inputs(query_dim, key_dim):
    """query, key, value, bias; keys are shared by the heads."""
    return (
        randn(HEADS, 2, query_dim, scale=0.2),
        randn(1, 3, key_dim, scale=0.2),
        randn(HEADS, 3, 2),
        randn(1, 2, 3),
    )


def pooled(query, key, value, bias, score, backend):
    record = regard.inspect(query, key, value, score, SEEN, bias=bias, backend=backend)
    return record.output, record.log_mass


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SCORES)
def test_gradients_of_inputs_bias_and_parameters(name, backend):
    case = SCORES[name]
    score = case.build().double()
    parameters = dict(score.named_parameters())

    def function(query, key, value, bias, *changed):
        with torch.nn.utils.parametrize.cached():
            own = dict(zip(parameters, changed, strict=True))
            return torch.func.functional_call(Calls(score, backend), {f"score.{k}": v for k, v in own.items()}, (query, key, value, bias))  # fmt: skip

    assert gradcheck(function, (*inputs(case.query_dim, case.key_dim), *parameters.values()))


class Calls(torch.nn.Module):
    """A score as a submodule, so that its parameters can be exchanged."""

    def __init__(self, score, backend):
        super().__init__()
        self.score, self.backend = score, backend

    def forward(self, *tensors):
        return pooled(*tensors, self.score, self.backend)
