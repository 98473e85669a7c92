"""Which kernels a call launches, in Triton's interpreter or on a GPU: a test that passes has really run them."""

from collections import Counter

import pytest
import torch
from tests.backends.fused.additive.judge import drawn, results
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

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


def test_a_bound_that_no_lift_keeps_launches_none_of_it(launches):
    results(drawn(3, 4, tolerance=1e-5))
    assert not LIFT.keys() & set(launches)


@pytest.mark.usefixtures("small_slabs")
def test_every_slab_is_scored_and_pooled(launches):
    results(drawn(33, 17, value_dim=1))
    assert Counter(launches) == EXACT | {"exact_scores": 6, "pool_slab": 3, "grade_slab": 3, "pull_tokens": 6}
