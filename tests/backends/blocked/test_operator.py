"""Dropout and forward mode of `blocked` under transforms, and derivatives that its operator refuses."""

import pytest
import torch
from tests.refuses import refuses

import regard

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


@pytest.mark.parametrize("name", SCORES)
def test_examples_that_differ_in_their_dropout_only_have_a_batch_axis(name):
    query, key, value = (torch.randn(n, 3, dtype=torch.float64) for n in (4, 5, 5))
    score = SCORES[name]()

    def pooled(value):
        examples = torch.vmap(
            lambda _: regard.attend(query, key, value, score, dropout=0.5, backend="blocked"), randomness="different"
        )
        return examples(torch.zeros(3))

    torch.manual_seed(5)
    found = pooled(value.requires_grad_())
    assert found.shape == (3, 4, 3)
    assert not torch.allclose(found[0], found[1])
    (gradient,) = torch.autograd.grad(found.square().sum(), value)
    # The output is linear in the values.
    torch.testing.assert_close((gradient * value).sum(), 2 * found.square().sum())


FORWARD = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.func.jvp itself calls it


def energy(query, backend="blocked"):
    key, value = torch.linspace(-1, 1, 15).view(5, 3), torch.linspace(-1, 2, 10).view(5, 2)
    return regard.attend(query, key.to(query), value.to(query), "gaussian", backend=backend).sin().sum()


@FORWARD
def test_forward_mode_of_a_compiled_caller_is_that_of_the_equations():
    query = torch.randn(4, 3, dtype=torch.float64)
    _, exact = torch.func.jvp(lambda query: energy(query, "reference"), (query,), (query.sin(),))
    compiled = torch.compile(
        lambda query: torch.func.jvp(energy, (query,), (query.sin(),)), fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(compiled(query)[1], exact)
    compiled = torch.compile(energy, fullgraph=True, backend="aot_eager")
    compiled(query)  # the program without forward mode does not serve the next call
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(query, query.sin())
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(compiled(dual)).tangent, exact)


@FORWARD
def test_exported_program_refuses_forward_mode():
    class Module(torch.nn.Module):
        def forward(self, query):
            return energy(query)

    query = torch.randn(4, 3)
    program = torch.export.export(Module(), (query,)).module()
    torch.testing.assert_close(program(query), energy(query))
    with refuses("backend", "forward mode", "exported"):
        torch.func.jvp(program, (query,), (query,))
    with torch.autograd.forward_ad.dual_level(), refuses("backend", "forward mode", "exported"):
        program(torch.autograd.forward_ad.make_dual(query, query))


def test_gradients_of_a_compiled_caller_have_no_derivative():
    query = torch.randn(4, 3, requires_grad=True)
    output = torch.compile(energy, fullgraph=True, backend="aot_eager")(query)
    (first,) = torch.autograd.grad(output, query, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(first.sum(), query)


def test_gradients_in_batches_are_refused_with_a_way_out():
    query, key, value = torch.randn(5, 3), torch.randn(6, 3), torch.randn(6, 2)

    def pooled(query):
        return regard.attend(query, key, value, "gaussian", backend="blocked")

    with refuses("backend", "torch.func.jacrev"):
        torch.autograd.functional.jacobian(pooled, query, vectorize=True)
    assert torch.func.jacrev(pooled)(query).shape == (5, 2, 5, 3)
