"""`unroll`: the gradient it computes by hand is the gradient."""

import pytest
import torch

from regard.translation.model.unrolled import Conditional, Weights, unroll


def problem(batch=3, source=5, target=4, size=7, hidden=11, dim=13, lengths=None, conditional=False):
    """words, first, key, value, real, weights, conditional; all float64 and in need of a gradient."""
    draw = torch.Generator().manual_seed(0)

    def some(*shape):
        # As wide as a layer draws them: a recurrence with larger weights would magnify every rounding.
        scale = shape[-1] ** -0.5 if len(shape) < 3 else 1.0
        return (torch.randn(shape, generator=draw, dtype=torch.float64) * scale).requires_grad_()

    real = torch.arange(source) < torch.tensor(lengths or [source] * batch)[:, None]
    weights = Weights(some(hidden, size), some(hidden), some(3 * size, dim), some(3 * size, size), some(3 * size))
    cell = Conditional(some(3 * size), some(3 * size, size), some(3 * size)) if conditional else None
    tokens = some(batch, source, hidden), some(batch, source, dim)
    return some(batch, target, 3 * size), some(batch, size), *tokens, real, weights, cell


@pytest.mark.parametrize("conditional", [False, True])
def test_gradcheck(conditional):
    words, first, key, value, real, weights, cell = problem(2, 3, 3, 2, 3, 4, lengths=[3, 1], conditional=conditional)
    matrices = (*weights, *(cell or ()))

    def states_and_contexts(words, first, key, value, *matrices):
        cell = Conditional(*matrices[5:]) if conditional else None
        return unroll(words, first, key, value, real, Weights(*matrices[:5]), cell)

    assert torch.autograd.gradcheck(states_and_contexts, (words, first, key, value, *matrices))


def test_contexts_do_not_see_padding():
    words, first, key, value, real, weights, _ = problem(lengths=[5, 1, 2])
    states, contexts = unroll(words, first, key, value, real, weights)
    with torch.no_grad():
        key[~real], value[~real] = 50.0, -50.0
    again = unroll(words, first, key, value, real, weights)
    assert torch.equal(states, again[0])
    assert torch.equal(contexts, again[1])
    torch.testing.assert_close(contexts[1], value[1, 0].expand(4, -1))  # one real word holds all mass


def test_half_precision_is_computed_in_full():
    *inputs, real, weights, _ = problem()
    single = Weights(*(matrix.detach().float() for matrix in weights))
    half = [tensor.detach().bfloat16() for tensor in inputs]
    states, contexts = unroll(*half, real, single)
    assert states.dtype == contexts.dtype == torch.float32
    wanted = unroll(*(tensor.float() for tensor in half), real, single)
    torch.testing.assert_close((states, contexts), wanted)


def test_an_unknown_way_is_no_way():
    with pytest.raises(ModuleNotFoundError, match="magic"):
        unroll(*problem(), parts="magic")
