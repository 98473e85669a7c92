"""Which kernels a call launches, in Triton's interpreter or on a GPU: a test that passes has really run them."""

from collections import Counter

import pytest
import torch
from tests.backends.fused.additive.judge import drawn, results, score_of
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

import regard
from regard.backends.fused import INTERPRETED
from regard.backends.fused.additive import backward, forward, lifted_backward, sides

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

BACKWARD = {"measure_rows": 1, "grade_slab": 1, "pull_tokens": 2}
EXACT = {"expand_tokens": 4, "exact_scores": 2, "pool_slab": 1} | BACKWARD
STRAYS = {"add_strays": 4, "list_strays": 2, "pull_strays": 2}
LIFT = {"lift_tokens": 4, "patch_scores": 2, "pull_features": 2} | STRAYS
LIFTED = LIFT | {"pool_slab": 1, "choose_scale": 1} | BACKWARD


@pytest.fixture
def launches(monkeypatch):
    """A kernel's name for each launch of it."""
    launched, kinds = [], set()

    def watched(run):
        def recorded(kernel, programs, *tensors, **settings):
            assert programs > 0
            launched.append(kernel.__name__)
            kinds.add(type(kernel))
            run(kernel, programs, *tensors, **settings)

        return recorded

    for module in (sides, forward, backward, lifted_backward):
        monkeypatch.setattr(module, "run_programs", watched(module.run_programs))
    yield launched
    assert kinds == {InterpretedFunction if INTERPRETED else JITFunction}


@pytest.mark.parametrize(("tolerance", "expected"), [(None, EXACT), (2e-2, LIFTED)], ids=["exact", "lifted"])
def test_the_kernels_really_ran(launches, capsys, tolerance, expected):
    """Forward and backward of one slab: each side is prepared twice, scores are formed twice."""
    results(drawn(5, 17, spread=0.4, tolerance=tolerance))
    assert Counter(launches) == expected
    where = "in Triton's interpreter" if INTERPRETED else f"on {torch.cuda.get_device_name()}"
    with capsys.disabled():
        print(f"\nran {where}: " + ", ".join(f"{name} x {count}" for name, count in Counter(launches).items()))


@pytest.mark.parametrize("tolerance", [None, 2e-2], ids=["exact", "lifted"])
@pytest.mark.parametrize(("wanted", "pulls"), [("value", 0), ("query", 1), ("key", 1), ("weight", None)])
def test_sides_without_gradients_are_not_pulled(launches, wanted, pulls, tolerance):
    call = drawn(5, 17, spread=0.4, tolerance=tolerance)
    tensors = {"query": call.query.float(), "key": call.key.float(), "value": call.value.float()}
    score = score_of(call).requires_grad_(False)
    leaf = tensors.get(wanted, score.weight).requires_grad_()

    def gradient(backend, **options):
        output = regard.attend(*tensors.values(), score, backend=backend, **options)
        return torch.autograd.grad(output.sin().sum(), leaf)[0]

    found = gradient("triton", tolerance=tolerance)
    # The gradient of the weights is summed by queries, and where lifted by keys too.
    assert launches.count("pull_tokens") == (pulls if pulls is not None else 1 + (tolerance is not None))
    assert torch.allclose(found, gradient("reference"), atol=1e-5 if tolerance is None else 10 * tolerance)


def test_a_bound_that_no_lift_keeps_launches_none_of_it(launches):
    results(drawn(3, 4, tolerance=1e-5))
    assert not LIFT.keys() & set(launches)


@pytest.mark.usefixtures("small_slabs")
def test_every_slab_is_scored_and_pooled(launches):
    results(drawn(33, 17, value_dim=1))
    assert Counter(launches) == EXACT | {"exact_scores": 6, "pool_slab": 3, "grade_slab": 3, "pull_tokens": 6}
