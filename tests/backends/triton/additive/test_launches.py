"""Which kernels a call launches, in Triton's interpreter or on a GPU: if a test passes, they have run."""

from collections import Counter

import pytest
import torch
from tests.backends.triton.additive.judge import drawn, results, score_of
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

import regard
from regard.backends.triton.additive import exact, lifted, softmax
from regard.backends.triton.launch import INTERPRETED

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

BACKWARD = {"row_deltas": 1, "score_gradients": 1, "token_gradients": 2}
EXACT = {"expand_tokens": 2, "score_tiles": 2, "pool_scores": 1} | BACKWARD
OUTLIERS = {"correct_outlier_scores": 4, "list_outliers": 2, "correct_outlier_gradients": 2}
LIFT = {"lift_tokens": 4, "patch_scores": 2, "feature_gradients": 2} | OUTLIERS
LIFTED = LIFT | {"pool_scores": 1, "choose_scale": 1} | BACKWARD
# The kernels that run once for each side whose gradient is needed.
SIDE_KERNELS = ("token_gradients", "feature_gradients", "correct_outlier_gradients")


@pytest.fixture
def launches(monkeypatch):
    """A list of the names of the kernels that are launched."""
    launched, kinds = [], set()

    def recorded(launch):
        def record(kernel, programs, *operands, **settings):
            assert programs > 0
            launched.append(kernel.__name__)
            kinds.add(type(kernel))
            launch(kernel, programs, *operands, **settings)

        return record

    for module in (exact, softmax, lifted):
        monkeypatch.setattr(module, "launch", recorded(module.launch))
    yield launched
    assert kinds == {InterpretedFunction if INTERPRETED else JITFunction}


@pytest.mark.parametrize(("tolerance", "expected"), [(None, EXACT), (2e-2, LIFTED)], ids=["exact", "lifted"])
def test_kernels_run(launches, capsys, tolerance, expected):
    """Forward and backward of one slab: each side is prepared twice, and scores are computed twice."""
    results(drawn(5, 17, spread=0.4, tolerance=tolerance))
    assert Counter(launches) == expected
    where = "in Triton's interpreter" if INTERPRETED else f"on {torch.cuda.get_device_name()}"
    with capsys.disabled():
        print(f"\nran {where}: " + ", ".join(f"{name} x {count}" for name, count in Counter(launches).items()))


@pytest.mark.parametrize("tolerance", [None, 2e-2], ids=["exact", "lifted"])
@pytest.mark.parametrize(
    ("leaf", "exact_sides", "lifted_sides"), [("value", 0, 0), ("query", 1, 1), ("key", 1, 1), ("weight", 1, 2)]
)
def test_gradients_that_are_not_needed_are_not_computed(launches, leaf, exact_sides, lifted_sides, tolerance):
    """The gradient of the weight is computed with that of the queries, and if lifted with that of the keys, too."""
    call = drawn(5, 17, spread=0.4, tolerance=tolerance)
    tensors = {"query": call.query.float(), "key": call.key.float(), "value": call.value.float()}
    score = score_of(call).requires_grad_(False)
    source = tensors.get(leaf, score.weight).requires_grad_()

    def gradient(backend, **options):
        output = regard.attend(*tensors.values(), score, backend=backend, **options)
        return torch.autograd.grad(output.sin().sum(), source)[0]

    found = gradient("triton", tolerance=tolerance)
    expected = dict.fromkeys(SIDE_KERNELS, lifted_sides) if tolerance else {"token_gradients": exact_sides}
    assert {name: launches.count(name) for name in expected} == expected
    assert torch.allclose(found, gradient("reference"), atol=1e-5 if tolerance is None else 10 * tolerance)


def test_exact_call_launches_no_kernel_of_the_lift(launches):
    results(drawn(3, 4, tolerance=1e-5))
    assert not LIFT.keys() & set(launches)


@pytest.mark.usefixtures("small_slabs")
def test_kernels_run_once_for_each_slab(launches):
    results(drawn(33, 17, value_dim=1))
    assert Counter(launches) == EXACT | {"score_tiles": 6, "pool_scores": 3, "score_gradients": 3, "token_gradients": 6}
