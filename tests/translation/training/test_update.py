"""One update: the gradient of the mean over real tokens, clipped, and sums that are read once."""

import pytest
import torch
from tests.translation.training.toys import make_recipe

from regard.translation.batching import Plan, make_batch
from regard.translation.model import EncoderDecoder
from regard.translation.training.update import Totals, Update, tensors_of

SOURCES, TARGETS = [[4, 5, 6], [7]], [[5], [6, 7]]


def parts(**flags):
    recipe = make_recipe(**flags)
    torch.manual_seed(0)
    model = EncoderDecoder(recipe.model, 10, 10).train()
    return model, torch.optim.SGD(model.parameters(), lr=1.0), recipe.training


def batch():
    return make_batch(Plan((0, 1), 2, 4, 3, 5), SOURCES, TARGETS)


DRY = {"embedding_dropout": 0.0, "state_dropout": 0.0, "readout_dropout": 0.0}


def test_the_step_is_minus_the_gradient_of_the_mean():
    model, optimiser, training = parts(**DRY, clip=1e9, label_smoothing=0.0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    logits = model(*batch()[:3])
    mean = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch().target.flatten(), ignore_index=0)
    gradients = torch.autograd.grad(mean, list(model.parameters()))
    update = Update(model, optimiser, training)
    update(batch())
    for old, new, gradient in zip(before, model.parameters(), gradients, strict=True):
        torch.testing.assert_close(new.detach(), old - gradient)
    loss, tokens, norm = update.totals.read()
    assert (loss / tokens, tokens) == pytest.approx((mean.item(), 5), rel=1e-6)
    assert norm == pytest.approx(torch.cat([gradient.flatten() for gradient in gradients]).norm().item(), rel=1e-5)
    assert update.totals.read() == (0, 0, 0)


def test_a_long_gradient_is_shortened():
    model, optimiser, training = parts(**DRY, clip=0.001)
    before = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    Update(model, optimiser, training)(batch())
    after = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert (after - before).norm().item() == pytest.approx(0.001, rel=1e-2)


def test_two_passes_draw_different_dropout():
    model, optimiser, training = parts(r_drop=5.0)
    update = Update(model, optimiser, training)
    loss = update.loss(*tensors_of(batch())[:4])
    single = Update(model, optimiser, parts()[2]).loss(*tensors_of(batch())[:4])
    assert loss.objective > single.objective  # the disagreement of the two
    assert loss.objective.requires_grad
    assert not loss.cross_entropy.requires_grad


def test_totals_begin_with_nothing():
    assert Totals.zeros(torch.device("cpu")).read() == (0, 0, 0)
