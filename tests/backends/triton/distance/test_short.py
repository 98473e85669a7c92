"""Short calls, whose forward pass is one launch, agree with the reference."""

from collections import Counter

import pytest
import torch
from tests.backends.triton.distance.judge import disagreements, drawn

import regard
from regard import Mask
from regard.backends.triton import launch
from regard.scores.kernels import KERNELS

pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.usefixtures("short_calls")]

CALLS = {
    "one pair": (1, 1, 3, 2, {}),
    "several tiles of both sides": (70, 140, 5, 3, {}),
    "many dimensions and wide values": (5, 9, 70, 130, {}),
    "keys of one batch": (5, 9, 20, 3, {"batch": (2, 2), "key_batch": (2, 1)}),
    "causal": (20, 33, 20, 3, {"mask": Mask.causal(align="lower_right")}),
    "a window": (80, 80, 3, 3, {"mask": Mask.window(5, 0, align="top_left")}),
    "lengths and an empty example": (3, 20, 20, 3, {"batch": (2,), "mask": Mask.lengths(torch.tensor([17, 0]))}),
    "a bias for each key": (5, 9, 20, 3, {"bias": torch.randn(1, 9)}),
}


@pytest.mark.parametrize("name", CALLS)
def test_short_call_agrees_with_the_reference(name):
    queries, keys, dim, value_dim, settings = CALLS[name]
    assert disagreements(drawn("gaussian", queries, keys, dim, value_dim, spread=0.3, **settings)) == []


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_every_radial_kernel(kernel):
    assert disagreements(drawn(kernel, 7, 13, 17, 3, spread=0.1)) == []


def test_query_far_from_all_keys_gets_the_value_of_the_nearest():
    query, key, value = torch.full((1, 20), 1e4), torch.randn(9, 20), torch.randn(9, 3)
    nearest = value[torch.cdist(query.double(), key.double()).argmin()]
    found = regard.attend(query, key, value, regard.scores.Gaussian(1e-2), backend="triton")
    torch.testing.assert_close(found[0], nearest, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize(("dim", "value_dim"), [(3, 2), (20, 3)])
def test_forward_pass_is_one_launch(monkeypatch, dim, value_dim):
    names = []

    def recorded(kernel, *operands, launch=launch.launch, **settings):
        names.append(kernel.__name__)
        return launch(kernel, *operands, **settings)

    monkeypatch.setattr(launch, "launch", recorded)
    regard.attend(*(torch.randn(5, size) for size in (dim, dim, value_dim)), "gaussian", backend="triton")
    assert Counter(names) == {"difference_forward": 1}
