"""A call can be captured in a CUDA graph, by the caller or by torch.compile; a replay computes its own inputs."""

import os

import pytest
import torch

import regard
from regard.backends import dispatch
from regard.backends.triton import additive
from regard.scores import Additive, Gaussian

pytestmark = pytest.mark.skipif(
    os.environ.get("REGARD_TEST_DEVICE") != "cuda", reason="no GPU: CUDA graphs were not tested"
)


@pytest.fixture(autouse=True)
def _lift_at_any_size(monkeypatch):
    monkeypatch.setattr(additive, "MIN_LIFT_WORK", 1)


def scores():
    exact = Additive.of_projected(24).to("cuda")
    with torch.no_grad():
        exact.weight.normal_()
    lifted = Additive.of_projected(24).to("cuda")
    lifted.load_state_dict(exact.state_dict())
    lifted.train()
    with torch.enable_grad():
        for _ in range(2):
            lifted.reach.observe(torch.randn(2, 256, 24), torch.randn(2, 256, 24))
            torch.cuda.synchronize()
    return {
        "exact": (exact.eval(), None),
        "lifted": (lifted.eval(), 2e-2),
        "gaussian": (Gaussian(2.0), None),
    }


@pytest.mark.parametrize("name", ["exact", "lifted", "gaussian"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_replay_equals_the_call(name, backward):
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
        captured = call()
    with torch.no_grad():
        for x in inputs:
            x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    replayed = [x.clone() for x in captured]
    for found, expected in zip(replayed, call(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # inductor warns about TF32 and deprecations
@pytest.mark.parametrize("name", ["exact", "lifted", "gaussian"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_compiled_caller_uses_the_kernels_in_a_cuda_graph(monkeypatch, name, backward):
    """Cached tables are created while the caller is traced. torch refuses tensors in the memory of a captured graph."""
    # Calls of any size use the kernels.
    least = dict.fromkeys(dispatch.MIN_TRITON_ELEMENTS, 0)
    monkeypatch.setattr(dispatch, "MIN_TRITON_ELEMENTS", least)
    score, tolerance = scores()[name]
    additive.lift.tables_on.cache_clear()
    compiled = torch.compile(
        lambda *inputs: regard.attend(*inputs, score, tolerance=tolerance), fullgraph=True, mode="reduce-overhead"
    )
    for _ in range(4):
        inputs = [torch.randn(2, 256, width).requires_grad_(backward) for width in (24, 24, 20)]
        with torch.set_grad_enabled(backward):
            results = []
            for output in (compiled(*inputs), regard.attend(*inputs, score, backend="triton", tolerance=tolerance)):
                grads = torch.autograd.grad(output.square().sum(), inputs) if backward else ()
                results.append([x.detach().clone() for x in (output, *grads)])
        for found, expected in zip(*results, strict=True):
            assert torch.equal(found, expected)
