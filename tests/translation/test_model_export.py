"""Models that `torch.export` has traced: the batch may stay open, the lengths may not."""

import pytest
import torch
from tests.refuses import refuses
from tests.translation.examples import make_batch, make_model
from torch.export import Dim

# torch takes the weights of its own recurrent layers for tensors that the model makes anew.
pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes self.encoder")
ARGUMENTS = ("source", "lengths", "previous")


@pytest.fixture
def batch():
    return make_batch((4, 7, 6), (3, 5, 2))[:3]


@torch.no_grad()
def export(model, batch, open_sizes):
    """open_sizes: for some arguments the axis that stays open and its dimension."""
    shapes = {name: open_sizes.get(name, {}) for name in ARGUMENTS}
    return torch.export.export(model, batch, dynamic_shapes=shapes).module()


@pytest.mark.parametrize("choices", [{}, {"cell": "conditional"}, {"unit": "lstm"}], ids=str)
def test_fixed_lengths_export_the_same_numbers(batch, choices):
    model = make_model(**choices).eval()
    exported = export(model, batch, {})
    with torch.no_grad():
        torch.testing.assert_close(exported(*batch), model(*batch), rtol=0, atol=1e-12)


@pytest.mark.parametrize("make_size", [lambda: Dim.AUTO, lambda: Dim.DYNAMIC, lambda: Dim("batch")])
@pytest.mark.parametrize("unit", ["gru", "lstm"])
def test_an_open_batch_exports_the_same_numbers_for_other_batches(batch, unit, make_size):
    model, size = make_model(unit=unit).eval(), make_size()
    exported = export(model, batch, {name: {0: size} for name in ARGUMENTS})
    larger = make_batch((4, 7, 6, 1, 2), (3, 5, 2, 4, 1))[:3]
    with torch.no_grad():
        torch.testing.assert_close(exported(*larger), model(*larger), rtol=0, atol=1e-12)


@pytest.mark.parametrize("make_size", [lambda: Dim.AUTO, lambda: Dim.DYNAMIC, lambda: Dim("length")])
@pytest.mark.parametrize(("argument", "side"), [("source", "source"), ("previous", "target")])
@pytest.mark.parametrize("unit", ["gru", "lstm"])
def test_an_open_length_is_refused(batch, unit, argument, side, make_size):
    with refuses(argument, f"a number of {side} positions", "dynamic_shapes"):
        export(make_model(unit=unit).eval(), batch, {argument: {1: make_size()}})


@pytest.mark.parametrize("unit", ["gru", "lstm"])
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, of dynamo
def test_compiling_serves_every_length(batch, unit):
    model = make_model(unit=unit).eval()
    compiled = torch.compile(model, backend="eager", dynamic=True)
    with torch.no_grad():
        for other in (batch, make_batch((4, 9, 6), (3, 8, 2))[:3]):
            torch.testing.assert_close(compiled(*other), model(*other), rtol=0, atol=1e-12)
