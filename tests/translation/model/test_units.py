"""The decoder's units: torch's cells, with the input's share of the gates computed beforehand."""

import pytest
import torch
from torch import nn

from regard.translation.model.units import UNITS, Gates

CELLS = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_a_step_is_that_of_torchs_cell(name):
    unit, cell = UNITS[name](7).double(), CELLS[name](5, 7).double()
    gates = Gates((2, 3), 7, unit.parts).double()
    with torch.no_grad():
        cell.weight_ih.copy_(gates.weight)
        cell.bias_ih.copy_(gates.bias)
        cell.weight_hh.copy_(unit.recurrent.weight)
        cell.bias_hh.copy_(unit.recurrent.bias)
    word, context = torch.randn(11, 2).double(), torch.randn(11, 3).double()
    state = unit.start(torch.randn(11, 7).double())
    for _ in range(3):
        wanted = cell(torch.cat((word, context), -1), state[0] if name == "gru" else state)
        state = unit(gates.of(0, word) + gates.of(1, context), state)
        torch.testing.assert_close(state, (wanted,) if name == "gru" else wanted, rtol=0, atol=1e-13)


def test_the_bias_comes_once():
    gates = Gates((2, 3), 7, 3)
    nothing = torch.zeros(1, 2), torch.zeros(1, 3)
    assert torch.equal(gates.of(0, nothing[0])[0], gates.bias)
    assert not gates.of(1, nothing[1]).any()
