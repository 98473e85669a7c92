"""`Average`: the mean of the last weights, inside the block and nowhere else."""

import pytest
import torch
from torch import nn

from regard.translation.training.average import Average


def filled(model, value):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def test_the_mean_of_the_last_ones():
    model, average = nn.Linear(2, 3), Average(3)
    for value in (100.0, 1.0, 2.0, 6.0):
        filled(model, value)
        average.add(model)
    filled(model, 7.0)
    held = list(model.parameters())
    with average.inside(model):
        assert not model.training
        assert all(bool((parameter == 3.0).all()) for parameter in held)
    assert model.training
    assert all(bool((parameter == 7.0).all()) for parameter in held)
    assert list(model.parameters()) == held  # the very tensors: optimisers and graphs hold them


def test_with_nothing_kept_the_model_is_itself():
    model = nn.Linear(2, 3)
    before = model.weight.detach().clone()
    with Average(1).inside(model):
        assert torch.equal(model.weight, before)


def test_an_error_inside_leaves_the_model_as_it_was():
    model, average = nn.Linear(2, 3), Average(1)
    average.add(model)
    filled(model, 7.0)
    with pytest.raises(ZeroDivisionError), average.inside(model):
        raise ZeroDivisionError
    assert bool((model.weight == 7.0).all())
    assert model.training
