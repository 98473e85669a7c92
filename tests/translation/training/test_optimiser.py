"""Adam with decoupled decay, and its rate set from outside."""

import torch
from torch import nn

from regard.translation.recipe import Training
from regard.translation.training.optimiser import BETAS, make_optimiser, moments, restore, set_rate


def test_it_is_adamw_with_the_rate_that_is_set():
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    models[1].load_state_dict(models[0].state_dict())
    ours = make_optimiser(models[0], Training(weight_decay=0.1))
    theirs = torch.optim.AdamW(models[1].parameters(), lr=0.25, betas=BETAS, weight_decay=0.1)
    set_rate(ours, 0.25)
    for _ in range(3):
        for model, optimiser in zip(models, (ours, theirs), strict=True):
            optimiser.zero_grad()
            model(torch.ones(1, 3)).square().sum().backward()
            optimiser.step()
    torch.testing.assert_close(models[0].weight, models[1].weight)


def test_moments_come_back_and_options_stay_those_of_the_device():
    model = nn.Linear(3, 2)
    optimiser = make_optimiser(model, Training())
    model(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    again = make_optimiser(model, Training(learning_rate=0.125))
    restore(again, moments(optimiser))
    (group,) = again.param_groups
    assert (group["capturable"], group["lr"], group["fused"]) == (False, 0.125, True)
    assert again.state[model.weight]["step"] == 1
