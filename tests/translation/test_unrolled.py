"""All steps of the decoder at once: its operations and their gradients, judged by torch's cells and layers."""

import pytest
import torch
from torch import nn

from regard.translation import unrolled
from regard.translation.model import _run_apart, _run_together
from regard.translation.unrolled import ConditionalWeights, StepWeights, run_both_directions, unroll


def draw_leaf(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True)


def test_attention_and_its_gradient():
    query, key, weight, value = (
        draw_leaf(3, 7, seed=0),
        draw_leaf(3, 5, 7, seed=1),
        draw_leaf(7, seed=2),
        draw_leaf(3, 5, 11, seed=3),
    )
    bias = torch.zeros(3, 5, dtype=torch.float64)
    bias[1, 2:] = float("-inf")
    alpha = torch.softmax((torch.tanh(query[:, None] + key) * weight).sum(-1) + bias, -1)
    wanted = (alpha[..., None] * value).sum(1)
    found, context = torch.empty_like(bias), torch.empty(3, 11, dtype=torch.float64)
    with torch.no_grad():
        unrolled.attend(query, key, weight, bias, value, found, context)
    torch.testing.assert_close((found, context), (alpha.detach(), wanted.detach()))
    d_context = torch.randn(3, 11, dtype=torch.float64)
    d_query, d_key, d_weight = torch.full_like(query, 9.0), torch.ones_like(key), torch.ones(3, 7, dtype=torch.float64)
    with torch.no_grad():
        unrolled.attend_backward(d_context, found, query, key, weight, value, d_query, d_key, d_weight)
    gradients = torch.autograd.grad((wanted * d_context).sum(), (query, key, weight))
    # that of the query is written, the others are added to what was there
    torch.testing.assert_close((d_query, d_key - 1, (d_weight - 1).sum(0)), gradients)


def test_the_gated_unit_and_its_gradient():
    cell = nn.GRUCell(2, 7).double()
    word, state = draw_leaf(3, 2, seed=0), draw_leaf(3, 7, seed=1)
    wanted = cell(word, state)
    given = nn.functional.linear(word, cell.weight_ih, cell.bias_ih)
    recurrent = nn.functional.linear(state, cell.weight_hh, cell.bias_hh)
    part = torch.randn(3, 21, dtype=torch.float64)
    out, d_out = torch.empty_like(state), torch.randn(3, 7, dtype=torch.float64)
    d_gates, d_recurrent, d_state = (torch.empty(3, n, dtype=torch.float64) for n in (21, 21, 7))
    with torch.no_grad():
        for shares in ((given, None), (given - part, part)):  # the input's share comes in one piece or in two
            kept = unrolled.gru(*shares, recurrent, state, out)
            torch.testing.assert_close(out, wanted.detach())
        unrolled.gru_backward(d_out, kept, state, d_gates, d_recurrent, d_state)
    d_word, d_before = torch.autograd.grad((wanted * d_out).sum(), (word, state))
    torch.testing.assert_close(d_gates @ cell.weight_ih, d_word)
    torch.testing.assert_close(d_recurrent @ cell.weight_hh + d_state, d_before)


def problem(batch=3, source=5, target=4, size=7, hidden=11, dim=13, lengths=None, conditional=False):
    """words, first, key, value, real, weights, conditional; all float64 and in need of a gradient."""
    draw = torch.Generator().manual_seed(0)

    def some(*shape):
        # As wide as a layer draws them: a recurrence with larger weights would magnify every rounding.
        scale = shape[-1] ** -0.5 if len(shape) < 3 else 1.0
        return (torch.randn(shape, generator=draw, dtype=torch.float64) * scale).requires_grad_()

    real = torch.arange(source) < torch.tensor(lengths or [source] * batch)[:, None]
    weights = StepWeights(some(hidden, size), some(hidden), some(3 * size, dim), some(3 * size, size), some(3 * size))
    cell = ConditionalWeights(some(3 * size), some(3 * size, size), some(3 * size)) if conditional else None
    tokens = some(batch, source, hidden), some(batch, source, dim)
    return some(batch, target, 3 * size), some(batch, size), *tokens, real, weights, cell


@pytest.mark.parametrize("conditional", [False, True])
def test_gradcheck(conditional):
    words, first, key, value, real, weights, cell = problem(2, 3, 3, 2, 3, 4, lengths=[3, 1], conditional=conditional)
    matrices = (*weights, *(cell or ()))

    def states_and_contexts(words, first, key, value, *matrices):
        cell = ConditionalWeights(*matrices[5:]) if conditional else None
        return unroll(words, first, key, value, real, StepWeights(*matrices[:5]), cell)

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
    single = StepWeights(*(matrix.detach().float() for matrix in weights))
    half = [tensor.detach().bfloat16() for tensor in inputs]
    states, contexts = unroll(*half, real, single)
    assert states.dtype == contexts.dtype == torch.float32
    wanted = unroll(*(tensor.float() for tensor in half), real, single)
    torch.testing.assert_close((states, contexts), wanted)


def test_an_unknown_way_is_no_way():
    with pytest.raises(KeyError, match="magic"):
        unroll(*problem(), ops="magic")


def test_both_directions_pass_gradcheck():
    shapes = ((2, 3, 2, 6), (2, 6, 2), (2, 6))
    assert torch.autograd.gradcheck(
        run_both_directions, [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    )


@pytest.mark.parametrize("source", [1, 5])
def test_they_are_torchs_layers(source):
    layers = [nn.GRU(3, 7, batch_first=True).double() for _ in range(2)]
    results = []
    for way in (_run_together, _run_apart):
        draw = torch.Generator().manual_seed(0)
        inputs = [torch.randn(2, source, 3, generator=draw, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        states = way(*layers, *inputs)
        aims = [torch.randn(2, source, 7, generator=draw, dtype=torch.float64) for _ in range(2)]
        total = sum((state * aim).sum() for state, aim in zip(states, aims, strict=True))
        parameters = [parameter for layer in layers for parameter in layer.parameters()]
        results.append((*states, *torch.autograd.grad(total, (*inputs, *parameters))))
    torch.testing.assert_close(*results, rtol=0, atol=1e-13)
