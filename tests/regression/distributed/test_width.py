"""Widths on Dask arrays: numbers, rules, and leave-one-out over all blocks."""

# ruff: noqa: N803, N806 (X is what scikit-learn calls it)

import numpy as np
import pytest
from tests import oracle
from tests.refuses import refuses

from regard.regression import NadarayaWatson, Nearest, bandwidth_search, dask_smoother


@pytest.mark.parametrize("rule", ["scott", "silverman"])
@pytest.mark.parametrize("kernel", ["gaussian", "tricube"])
def test_rules(observed, rule, kernel):
    ours = NadarayaWatson(kernel, rule).fit(*observed.in_blocks, observed.weight_in_blocks)
    theirs = NadarayaWatson(kernel, rule).fit(observed.X, observed.y, observed.weight)
    np.testing.assert_allclose(ours.bandwidth_, theirs.bandwidth_, rtol=1e-13)


@pytest.mark.parametrize("rule", ["scott", "silverman"])
def test_an_offset_costs_a_rule_no_digits(observed, rule):
    observed.X = (observed.X + 1e6).astype(np.float32)
    ours = NadarayaWatson(bandwidth=rule).fit(*observed.in_blocks)
    theirs = NadarayaWatson(bandwidth=rule).fit(observed.X, observed.y)
    np.testing.assert_allclose(ours.bandwidth_, theirs.bandwidth_, rtol=1e-6)


def test_few_rows_are_judged_as_numpy_judges_them(on_a_line):
    ours = NadarayaWatson().fit(*on_a_line.in_blocks)
    theirs = NadarayaWatson().fit(on_a_line.X, on_a_line.y)
    assert (ours.bandwidth_, ours.criterion_) == (theirs.bandwidth_, theirs.criterion_)
    np.testing.assert_allclose(ours.predict(on_a_line.query), theirs.predict(on_a_line.query), atol=1e-12)


@pytest.fixture
def few_are_judged(monkeypatch):
    monkeypatch.setattr(dask_smoother, "DRAWN_ROWS", 90)
    monkeypatch.setattr(bandwidth_search, "SCAN_ROWS", 60)


# Where copies of a row stay when one is left out, the narrowest width may be the best.
@pytest.mark.filterwarnings("ignore::regard.regression.BandwidthWarning")
@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
@pytest.mark.parametrize("weighted", [False, True])
def test_each_row_is_predicted_from_all_others(on_a_line, few_are_judged, monkeypatch, kernel, weighted):
    drawn = []
    draw = dask_smoother._draw
    monkeypatch.setattr(dask_smoother, "_draw", lambda smoother: drawn.append(draw(smoother)) or drawn[0])
    weight = on_a_line.weight if weighted else np.ones_like(on_a_line.weight)
    model = NadarayaWatson(kernel).fit(*on_a_line.in_blocks, on_a_line.weight_in_blocks if weighted else None)

    kept = weight > 0
    X, y, weight = on_a_line.X[kept], on_a_line.y[kept], weight[kept]
    ends = np.cumsum([block.rows for block in model.smoother_.summaries])
    rows = np.concatenate(
        [part + end - block.rows for part, end, block in zip(drawn[0], ends, model.smoother_.summaries, strict=True)]
    )
    assert len(rows) == len(set(rows)) == 90
    expected, alone = criterion(kernel, X, y, weight, rows, model.bandwidth_)
    assert model.criterion_ == pytest.approx(expected, rel=1e-10)
    assert model.loo_alone_ == alone
    assert model.criterion_ == model.trials_.values.min()
    assert model.smoother_.without is None


def criterion(kernel, X, y, weight, rows, bandwidth):
    """The formula in loops: row i of weight w leaves out min(w, 1) of itself."""
    errors, alone = [], 0
    for i in rows:
        rest = weight.copy()
        rest[i] -= min(weight[i], 1)
        mass = rest * [oracle.KERNELS[kernel](abs(X[i, 0] - x) / bandwidth) for x in X[:, 0]]
        if mass.sum() == 0:
            mass, alone = rest, alone + 1
        errors.append(np.mean((y[i] - mass @ y / mass.sum()) ** 2))
    return np.average(errors, weights=weight[rows]), alone


def test_several_dimensions_and_what_is_said(few_are_judged, observed, capsys):
    model = NadarayaWatson(verbose=1).fit(*observed.in_blocks)
    assert "loo uses 90 rows of 311, each predicted from all others" in capsys.readouterr().out
    theirs = NadarayaWatson().fit(observed.X, observed.y)
    assert np.shape(model.bandwidth_) == np.shape(theirs.bandwidth_)
    np.testing.assert_allclose(model.bandwidth_, theirs.bandwidth_, rtol=0.5)
    assert model.smoother_.width is not theirs.smoother_.width


@pytest.mark.parametrize(
    ("arguments", "argument", "word"),
    [
        ({"bandwidth": "aicc"}, "bandwidth", "'aicc'"),
        ({"bandwidth": Nearest(5)}, "bandwidth", "Nearest"),
        ({"bandwidth": "loo", "exclude": 3}, "bandwidth", "exclude=3"),
        ({"bandwidth": "loo", "per_dimension": True}, "bandwidth", "per_dimension=True"),
        ({"bandwidth": -1.0}, "bandwidth", "-1.0"),
        ({"bandwidth": "wide"}, "bandwidth", "'wide'"),
        ({"kernel": "parabola"}, "kernel", "'parabola'"),
    ],
)
def test_what_is_refused(on_a_line, arguments, argument, word):
    with refuses(argument, word):
        NadarayaWatson(**arguments).fit(*on_a_line.in_blocks)
