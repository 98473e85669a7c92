"""One call of each kind agrees with the reference: masks, bias, a late maximum, the lift and its outliers.

The mutants of the kernels run these tests.
"""

import pytest
import torch
from tests.backends.triton.additive.judge import Call, disagreements, drawn

from regard import Mask
from regard.backends.triton.additive import lifted

pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.usefixtures("small_slabs")]

CALLS = {
    "masks and a bias": lambda: drawn(
        17,
        19,
        value_dim=1,
        mask=Mask.causal(align="lower_right") & Mask.keys(torch.arange(19) != 4),
        bias=torch.randn(17, 19),
    ),
    "small activations": lambda: drawn(17, 19, value_dim=1, spread=0.3),
    "the largest score last": lambda: drawn(
        17, 19, value_dim=1, spread=0.3, bias=torch.linspace(0, 3, 19).repeat(17, 1)
    ),
    "large activations": lambda: drawn(17, 19, value_dim=1, spread=12.0),
    "a mask that is a matrix": lambda: drawn(17, 19, value_dim=1, mask=Mask.keep(torch.rand(17, 19) < 0.6)),
    "the lift": lambda: lifted_call(),
    "the lift with a few outliers": lambda: with_outliers(),
    "the lift with blocks of outliers": lambda: with_outliers(blocks=True),
}


def lifted_call() -> Call:
    """Return a call whose tolerance allows the lift."""
    return drawn(17, 19, value_dim=1, spread=0.6, tolerance=5e-3, mask=Mask.keys(torch.arange(19) != 4))


def with_outliers(*, blocks: bool = False) -> Call:
    """Return a lifted call with outliers on both sides; blocks: some blocks have many of them."""
    call = lifted_call()
    query, key = call.query.clamp(-0.9, 0.9), call.key.clamp(-0.9, 0.9)
    # Outliers of one unit lie across the middle from each other, where the correction is largest.
    query[3:17:2, 0], query[16, 1], key[2:18:2, 0], key[18, 1] = 3.0, -2.5, -1.3, 1.4
    if blocks:
        query[:8], key[:8] = 2.0, -2.0
    return call._replace(query=query, key=key, reach=(1.0, 1.0), tolerance=2e-3)


@pytest.fixture(autouse=True)
def _many_outliers(monkeypatch):
    """A block may have 16 outliers among its 64 activations."""
    monkeypatch.setattr(lifted, "ACTIVATIONS_PER_OUTLIER", 4)


@pytest.mark.parametrize("kind", CALLS)
def test_output_log_mass_and_gradients_agree(kind):
    assert disagreements(CALLS[kind]()) == []
