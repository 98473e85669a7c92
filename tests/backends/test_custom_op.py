"""Two functions as an operator of torch: plain calls go straight to them, and whoever watches sees the operator."""

from collections.abc import Sequence

import pytest
import torch
from tests.refuses import refuses
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from regard.backends.custom_op import Directions, operator

CALLS = []


def forward(tensors: Sequence[Tensor], power: int) -> tuple[Tensor, Tensor, Tensor]:
    CALLS.append("forward")
    (x,) = tensors
    return x**power, x.sum(-1), x ** (power - 1)


def backward(results: Sequence[Tensor], tensors: Sequence[Tensor], power: int, needs: Sequence[bool]) -> list[Tensor]:
    CALLS.append("backward")
    grad_output, grad_log_mass, _, _, kept = results
    return [grad_output * power * kept + grad_log_mass.unsqueeze(-1)] if needs[0] else [tensors[0].new_empty(0)]


def fake(tensors, power):
    (x,) = tensors
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1]), x.new_empty(x.shape)


POWER = operator("test_power", Directions(forward, backward, fake), backend="powers", refusal="there is one only")


@pytest.fixture
def seen():
    """Which functions ran, and which operators of torch were called."""
    CALLS.clear()
    operators = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            operators.append(str(function))
            return function(*args, **(kwargs or {}))

    return Watch, operators


def pooled(x):
    output, log_mass, _ = POWER.run([x], (3,))
    return output.sum() + 2 * log_mass.sum()


def test_a_plain_call_goes_straight_to_the_functions():
    CALLS.clear()
    x = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    pooled(x).backward()
    assert CALLS == ["forward", "backward"]
    torch.testing.assert_close(x.grad, 3 * x.detach() ** 2 + 2)


def test_who_watches_sees_the_operators(seen):
    watch, operators = seen
    x = torch.randn(4, 3, 2, requires_grad=True)
    with watch():
        pooled(x).backward()
    assert "regard.test_power.default" in operators
    assert "regard.test_power_backward.default" in operators


def test_shapes_are_known_without_numbers():
    CALLS.clear()
    with FakeTensorMode():
        output, log_mass, _ = POWER.run([torch.randn(4, 3, 2)], (3,))
    assert (output.shape, log_mass.shape, CALLS) == ((4, 3, 2), (4, 3), [])


def test_transforms_find_their_way():
    x = torch.randn(5, 4, 3, 2, dtype=torch.float64)
    per_example = torch.func.vmap(torch.func.grad(pooled))(x)
    torch.testing.assert_close(per_example, 3 * x**2 + 2)
    compiled = torch.compile(pooled, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), pooled(x))


def test_a_second_derivative_is_refused():
    x = torch.randn(4, 3, 2, requires_grad=True)
    (first,) = torch.autograd.grad(pooled(x), x, create_graph=True)
    with refuses("backend", "derivatives", "derivative", "through"):
        first.sum().backward()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_forward_mode_derivative_is_refused_and_not_lost():
    x = torch.randn(4, 3, 2)
    with torch.autograd.forward_ad.dual_level(), refuses("backend", "derivative", "forward", "through"):
        POWER.run([torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))], (3,))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_tracer_records_one_operator():
    traced = torch.jit.trace(lambda x: POWER.run([x], (3,))[0], torch.randn(4, 3, 2))
    assert "regard::test_power" in str(traced.graph)


def test_torch_finds_nothing_wrong():
    x = torch.randn(4, 3, 2, requires_grad=True)
    assert set(torch.library.opcheck(POWER.forward, ([x], 3)).values()) == {"SUCCESS"}
