"""Layers compiled by inductor, torch.compile's default, compute and learn what they do eagerly.

`python -m tests.layers.compiled` runs all scores, heads, masks and lengths; here are those whose heads are computed by
the project's own operators.
"""

import pytest
from tests.layers.compiled import disagreements


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # inductor's own
@pytest.mark.parametrize(("score", "mask"), [("gaussian", "none"), ("additive", "lengths")])
def test_a_layer_of_two_heads_compiled_by_inductor_learns_as_the_eager_one(score, mask):
    assert not disagreements(score, 2, mask, tokens=600)
