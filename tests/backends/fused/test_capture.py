"""A call can be recorded in a CUDA graph, by hand or by torch.compile; a replay answers for its own inputs."""

import os

import pytest
import torch

import regard
from regard.backends import dispatch
from regard.backends.fused.additive import plan
from regard.backends.fused.additive.lift import sides_on
from regard.scores import Additive, Gaussian

pytestmark = pytest.mark.skipif(
    os.environ.get("REGARD_TEST_DEVICE") != "cuda", reason="no GPU: CUDA graphs were NOT tried"
)


@pytest.fixture(autouse=True)
def _lifted_however_short(monkeypatch):
    monkeypatch.setattr(plan, "LEAST_WORK", 1)


def scores():
    additive = Additive.of_projected(24).to("cuda")
    with torch.no_grad():
        additive.weight.normal_()
    settled = Additive.of_projected(24).to("cuda")
    settled.load_state_dict(additive.state_dict())
    settled.train()
    with torch.enable_grad():
        for _ in range(2):
            settled.reach.observe(torch.randn(2, 256, 24), torch.randn(2, 256, 24))
            torch.cuda.synchronize()
    return {
        "exact": (additive.eval(), None),
        "lifted": (settled.eval(), 2e-2),
        "gaussian": (Gaussian(2.0), None),
    }


@pytest.mark.parametrize("name", ["exact", "lifted", "gaussian"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_a_replay_is_the_call(name, backward):
    score, tolerance = scores()[name]
    inputs = [torch.randn(2, 256, width).requires_grad_(backward) for width in (24, 24, 20)]

    def call():
        with torch.set_grad_enabled(backward):
            output = regard.attend(*inputs, score, backend="triton", tolerance=tolerance)
            grads = torch.autograd.grad(output.square().sum(), inputs) if backward else ()
            return [output.detach(), *grads]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        recorded = call()
    with torch.no_grad():
        for x in inputs:
            x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    replayed = [x.clone() for x in recorded]
    for found, expected in zip(replayed, call(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # of inductor's own, about TF32 and deprecations
@pytest.mark.parametrize("name", ["exact", "lifted", "gaussian"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_a_compiled_caller_takes_the_kernels_and_may_record_them(monkeypatch, name, backward):
    """What a call keeps is made while it is traced: in the memory of a graph it would be refused."""
    # Calls of any size use the kernels.
    monkeypatch.setattr(dispatch, "MIN_TRITON_ELEMENTS", dict.fromkeys(dispatch.MIN_TRITON_ELEMENTS, 0))
    score, tolerance = scores()[name]
    sides_on.cache_clear()
    recorded = torch.compile(
        lambda *inputs: regard.attend(*inputs, score, tolerance=tolerance), fullgraph=True, mode="reduce-overhead"
    )
    for _ in range(4):
        inputs = [torch.randn(2, 256, width).requires_grad_(backward) for width in (24, 24, 20)]
        with torch.set_grad_enabled(backward):
            results = []
            for output in (recorded(*inputs), regard.attend(*inputs, score, backend="triton", tolerance=tolerance)):
                grads = torch.autograd.grad(output.square().sum(), inputs) if backward else ()
                results.append([x.detach().clone() for x in (output, *grads)])
        for found, expected in zip(*results, strict=True):
            assert torch.equal(found, expected)
