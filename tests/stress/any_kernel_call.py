"""Properties of the Triton kernels in Triton's interpreter: any small call agrees with the reference."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.backends.triton.additive import judge as additive
from tests.backends.triton.additive.conftest import _small_tiles  # noqa: F401
from tests.backends.triton.distance import judge as distance
from tests.backends.triton.distance.test_kernels import small_tiles  # noqa: F401
from tests.stress.calls import ROUNDINGS

from regard import Mask
from regard.scores.kernels import KERNELS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

MASKS = {
    "none": lambda keys: None,
    "causal": lambda keys: Mask.causal(align="lower_right"),
    "window": lambda keys: Mask.window(2, 1, align="top_left"),
    "keys": lambda keys: Mask.keys(torch.arange(keys) % 3 > 0),
}
sizes = st.integers(1, 19)


@pytest.mark.usefixtures("small_tiles")
@given(
    kernel=st.sampled_from(sorted(KERNELS)),
    shape=st.tuples(sizes, sizes, st.integers(1, 3), st.integers(1, 3)),
    mask=st.sampled_from(sorted(MASKS)),
    has_bias=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_kernels_of_distances_agree_with_the_reference(kernel, shape, mask, has_bias, seed):
    torch.manual_seed(seed)
    bias = torch.randn(1, shape[1], dtype=torch.float64) if has_bias else None
    call = distance.drawn(kernel, *shape, spread=0.3, mask=MASKS[mask](shape[1]), bias=bias)
    assert distance.disagreements(call, roundings=ROUNDINGS) == []


@given(
    shape=st.tuples(sizes, sizes, st.integers(1, 5), st.integers(1, 3)),
    mask=st.sampled_from(sorted(MASKS)),
    spread=st.sampled_from([0.1, 1.0, 6.0]),
    seed=st.integers(0, 2**31),
)
def test_kernels_of_additive_scores_agree_with_the_reference(shape, mask, spread, seed):
    torch.manual_seed(seed)
    assert additive.disagreements(additive.drawn(*shape, spread=spread, mask=MASKS[mask](shape[1]))) == []
