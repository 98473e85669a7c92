"""Point 18 of the chapter: what scaling does to entropy and gradients."""

import math

import pytest
import torch

from regard.translation.lab.saturation import KEYS, SCORES, VANISHED, measure_saturation


@pytest.fixture(scope="module")
def found():
    return measure_saturation((2, 16, 128, 512), draws=2)


def test_scaled_weights_keep_their_entropy_in_every_dimension(found):
    entropies = [row.entropy for row in found.of("scaled dot")]
    assert max(entropies) - min(entropies) < 0.02
    assert min(entropies) > 0.8


def test_unscaled_weights_lose_it(found):
    entropies = [row.entropy for row in found.of("dot")]
    assert entropies == sorted(entropies, reverse=True)
    assert entropies[-1] < 0.1


def test_gradients_vanish_without_the_scale_and_only_then(found):
    plain, scaled = found.of("dot")[-1], found.of("scaled dot")[-1]
    assert plain.gradient < 0.05 * scaled.gradient
    assert plain.by_query < 0.5 * scaled.by_query
    assert plain.vanished > 0.3
    assert scaled.vanished == 0.0
    assert scaled.low > VANISHED


def test_one_dimension_by_the_formula():
    found = measure_saturation((3,), draws=1, seed=5)
    generator = torch.Generator().manual_seed(5)
    query, key, value = (
        torch.randn(1, count, width, generator=generator, dtype=torch.float64)
        for count, width in ((256, 3), (KEYS, 3), (KEYS, 1))
    )
    alpha = torch.softmax(query @ key.mT / math.sqrt(3), -1)
    output = alpha @ value
    gradient = (alpha * (value.mT - output)).norm(dim=-1)  # do / ds_j = alpha_j (v_j - o)
    row = found.of("scaled dot")[0]
    assert row.gradient == pytest.approx(float(gradient.quantile(0.5)))
    assert row.entropy == pytest.approx(float(-(alpha * alpha.log()).sum(-1).mean() / math.log(KEYS)))


def test_the_text_has_a_line_for_each_dimension(found):
    printed = str(found)
    assert all(f"\n  {dim} " in printed for dim in (2, 16, 128, 512))
    assert len(found.table().rows) == 4 * len(SCORES)
