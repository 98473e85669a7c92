"""The loss against sums written out, and the divergence of two passes."""

import numpy as np
import pytest
import torch

from regard.translation.training.loss import r_drop, smoothed_cross_entropy
from regard.translation.vocabulary import PAD

TARGETS = torch.tensor([[5, 3, PAD], [4, 6, 3]])


def log_softmax(logits):
    exact = logits.double().numpy()
    return (
        exact
        - np.log(np.exp(exact - exact.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - exact.max(-1, keepdims=True)
    )


def by_hand(logits, targets, smoothing):
    """objective and cross entropy."""
    log_p, objective, cross_entropy = log_softmax(logits), 0.0, 0.0
    for row, column in zip(*np.nonzero(targets.numpy()), strict=True):
        wanted = np.full(log_p.shape[-1], smoothing / log_p.shape[-1])
        wanted[targets[row, column]] += 1 - smoothing
        objective -= (wanted * log_p[row, column]).sum()
        cross_entropy -= log_p[row, column, targets[row, column]]
    return objective, cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_smoothed_cross_entropy(smoothing):
    logits = 3 * torch.randn(2, 3, 7)
    found = smoothed_cross_entropy(logits, TARGETS, smoothing)
    assert (found.objective.item(), found.cross_entropy.item()) == pytest.approx(
        by_hand(logits, TARGETS, smoothing), rel=1e-6
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_its_gradient_is_the_gradient(smoothing):
    logits = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: smoothed_cross_entropy(x, TARGETS, smoothing).objective, (logits,))


def test_r_drop_is_the_symmetric_divergence():
    logits = torch.randn(4, 3, 7)
    first, second = logits.chunk(2)
    log_p, log_q = log_softmax(first), log_softmax(second)
    real = (TARGETS != PAD).numpy()[..., None]
    there, back = ((real * np.exp(a) * (a - b)).sum() for a, b in ((log_p, log_q), (log_q, log_p)))
    entropies = [by_hand(half, TARGETS, 0.1) for half in (first, second)]
    found = r_drop(logits, TARGETS, 0.1, weight=5.0)
    wanted = (entropies[0][0] + entropies[1][0]) / 2 + 5 * (there + back) / 2
    assert found.objective.item() == pytest.approx(wanted, rel=1e-6)
    assert found.cross_entropy.item() == pytest.approx((entropies[0][1] + entropies[1][1]) / 2, rel=1e-6)


def test_two_equal_passes_do_not_disagree():
    logits = torch.randn(2, 3, 7)
    once = smoothed_cross_entropy(logits, TARGETS, 0.1)
    twice = r_drop(torch.cat((logits, logits)), TARGETS, 0.1, weight=5.0)
    torch.testing.assert_close(twice, once)


def test_what_stands_at_padding_adds_nothing():
    logits = torch.randn(2, 3, 7, requires_grad=True)
    smoothed_cross_entropy(logits, TARGETS, 0.1).objective.backward()
    assert not logits.grad[0, 2].any()
    assert logits.grad[0, :2].any()
    empty = smoothed_cross_entropy(torch.randn(2, 3, 7), torch.full((2, 3), PAD), 0.1)
    assert empty.objective.item() == 0


def test_two_passes_in_float64_have_a_loss_in_float64():
    logits = torch.randn(4, 3, 7, dtype=torch.float64)
    found = r_drop(logits, TARGETS, 0.1, 1.0)
    assert found.objective.dtype == found.cross_entropy.dtype == torch.float64
    means = [sum(by_hand(half, TARGETS, 0.0)) / 2 for half in logits.chunk(2)]
    assert found.cross_entropy.item() == pytest.approx(sum(means) / 2, rel=1e-12)
