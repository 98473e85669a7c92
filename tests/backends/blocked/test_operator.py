"""The operators behind the blocks keep torch's contract for operators: fake, autograd, and no hidden aliasing."""

import pytest
import torch
from tests.contracts.agreement import Case, build
from tests.refuses import refuses

import regard
from regard.attention.prepare import Options, prepare
from regard.backends.blocked.operator import OPERATOR, Statics
from regard.masks.bound import flatten


def arguments(score, mask="keep", dropout=0.0, requires_grad=True):
    """What `run` hands to the operator."""
    call = build(Case(score, mask, queries=5, keys=7), torch.float32)
    options = Options(mask=call.mask, bias=call.bias, dropout=dropout)
    problem = prepare(call.query, call.key, call.value, call.score, options)
    pair = problem.pair
    name = pair.kernel.name if pair.kind == "distance" else pair.kind
    operands = [pair.query, pair.key, *pair.parameters()]
    text, parts, numbers = ("", [], []) if problem.mask is None else flatten(problem.mask)
    tensors = [*operands, problem.value]
    tensors += [] if problem.bias is None else [problem.bias]
    tensors += [torch.tensor(3)] if dropout else []
    tensors += parts
    tensors = [x.detach().requires_grad_(requires_grad and x.is_floating_point()) for x in tensors]
    statics = Statics(
        operands=len(operands),
        has_bias=problem.bias is not None,
        has_seed=dropout > 0,
        form=name,
        scale=getattr(pair, "scale", 1.0),
        softcap=0.0,
        tanh=False,
        compiled=False,
        mask=text,
        numbers=numbers,
        dropout=dropout,
        keep=False,
    )
    return tensors, statics


@pytest.mark.parametrize(
    ("score", "mask"), [("scaled_dot", "none"), ("gaussian learnable", "combination"), ("additive", "keep")]
)
def test_the_forward_operator_passes_the_checks_of_torch(score, mask):
    tensors, statics = arguments(score, mask)
    assert set(torch.library.opcheck(OPERATOR.forward, (tensors, *statics)).values()) == {"SUCCESS"}


@pytest.mark.parametrize("score", ["scaled_dot", "gaussian learnable", "additive"])
def test_the_backward_operator_passes_the_checks_of_torch(score):
    tensors, statics = arguments(score, requires_grad=False)
    results = OPERATOR.forward(tensors, *statics)
    results = [*(torch.randn_like(x) for x in results[:2]), *results]
    needs = [x.is_floating_point() for x in tensors]
    checks = torch.library.opcheck(OPERATOR.backward, (results, tensors, *statics, needs))
    assert set(checks.values()) == {"SUCCESS"}


def test_gradients_that_nobody_needs_come_back_empty():
    tensors, statics = arguments("scaled_dot", requires_grad=False)
    results = OPERATOR.forward(tensors, *statics)
    results = [*(torch.ones_like(x) for x in results[:2]), *results]
    needs = [False, True, *(False for _ in tensors[2:])]
    found = OPERATOR.backward(results, tensors, *statics, needs)
    assert [gradient.numel() > 0 for gradient in found] == needs


def test_the_seed_decides_what_dropout_drops():
    tensors, statics = arguments("scaled_dot", "none", dropout=0.5, requires_grad=False)
    first, again = (OPERATOR.forward(tensors, *statics)[0] for _ in range(2))
    other = OPERATOR.forward([*tensors[:-1], torch.tensor(4)], *statics)[0]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


SCORES = {
    "scaled_dot": lambda: "scaled_dot",
    "gaussian": lambda: "gaussian",
    "additive": lambda: regard.scores.Additive(3, 3, 5).double(),
}


@pytest.mark.parametrize("name", SCORES)
def test_dropout_is_the_same_where_only_the_backward_pass_is_mapped(name):
    query, key, value = (torch.randn(n, 3, dtype=torch.float64) for n in (4, 5, 5))
    score = SCORES[name]()

    def pooled(value):
        torch.manual_seed(5)
        return regard.attend(query, key, value, score, dropout=0.5, backend="blocked")

    jacobian = torch.func.jacrev(pooled)(value)  # pooling is linear in its values
    torch.testing.assert_close(torch.einsum("abcd,cd->ab", jacobian, value), pooled(value))


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("randomness", ["same", "different"])
def test_mapped_examples_share_their_dropout_if_asked_to(name, randomness):
    query = torch.randn(1, 7, 3, dtype=torch.float64).expand(3, -1, -1)
    key, value = torch.randn(9, 3, dtype=torch.float64), torch.randn(9, 2, dtype=torch.float64)
    score = SCORES[name]()
    found = torch.vmap(
        lambda query: regard.attend(query, key, value, score, dropout=0.5, backend="blocked"), randomness=randomness
    )(query)
    assert torch.allclose(found[0], found[1]) == (randomness == "same")


def test_gradients_in_batches_are_refused_with_a_way_out():
    query, key, value = torch.randn(5, 3), torch.randn(6, 3), torch.randn(6, 2)

    def pooled(query):
        return regard.attend(query, key, value, "gaussian", backend="blocked")

    with refuses("backend", "torch.func.jacrev"):
        torch.autograd.functional.jacobian(pooled, query, vectorize=True)
    assert torch.func.jacrev(pooled)(query).shape == (5, 2, 5, 3)
