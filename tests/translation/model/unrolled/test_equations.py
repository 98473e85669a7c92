"""The parts of a step: what autograd and torch's cell say of them."""

import torch
from torch import nn

from regard.translation.model.unrolled import equations


def some(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True)


def test_attention_and_its_gradient():
    query, key, weight, value = some(3, 7, seed=0), some(3, 5, 7, seed=1), some(7, seed=2), some(3, 5, 11, seed=3)
    bias = torch.zeros(3, 5, dtype=torch.float64)
    bias[1, 2:] = float("-inf")
    alpha = torch.softmax((torch.tanh(query[:, None] + key) * weight).sum(-1) + bias, -1)
    wanted = (alpha[..., None] * value).sum(1)
    found, context = torch.empty_like(bias), torch.empty(3, 11, dtype=torch.float64)
    with torch.no_grad():
        equations.attend(query, key, weight, bias, value, found, context)
    torch.testing.assert_close((found, context), (alpha.detach(), wanted.detach()))
    d_context = torch.randn(3, 11, dtype=torch.float64)
    d_query, d_key, d_weight = torch.full_like(query, 9.0), torch.ones_like(key), torch.ones(3, 7, dtype=torch.float64)
    with torch.no_grad():
        equations.attend_backward(d_context, found, query, key, weight, value, d_query, d_key, d_weight)
    gradients = torch.autograd.grad((wanted * d_context).sum(), (query, key, weight))
    # that of the query is written, the others are added to what was there
    torch.testing.assert_close((d_query, d_key - 1, (d_weight - 1).sum(0)), gradients)


def test_the_gated_unit_and_its_gradient():
    cell = nn.GRUCell(2, 7).double()
    word, state = some(3, 2, seed=0), some(3, 7, seed=1)
    wanted = cell(word, state)
    given = nn.functional.linear(word, cell.weight_ih, cell.bias_ih)
    recurrent = nn.functional.linear(state, cell.weight_hh, cell.bias_hh)
    part = torch.randn(3, 21, dtype=torch.float64)
    out, d_out = torch.empty_like(state), torch.randn(3, 7, dtype=torch.float64)
    d_gates, d_recurrent, d_state = (torch.empty(3, n, dtype=torch.float64) for n in (21, 21, 7))
    with torch.no_grad():
        for shares in ((given, None), (given - part, part)):  # the input's share comes in one piece or in two
            kept = equations.gru(*shares, recurrent, state, out)
            torch.testing.assert_close(out, wanted.detach())
        equations.gru_backward(d_out, kept, state, d_gates, d_recurrent, d_state)
    d_word, d_before = torch.autograd.grad((wanted * d_out).sum(), (word, state))
    torch.testing.assert_close(d_gates @ cell.weight_ih, d_word)
    torch.testing.assert_close(d_recurrent @ cell.weight_hh + d_state, d_before)
