"""Criteria follow their formulas, leave-one-out leaves each row out, and many bandwidths at once give the same."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.nonparametric.kernel_regression import KernelReg
from tests.refuses import refuses
from tests.regression.curves import KERNELS, left_out, wave

from regard.regression import NadarayaWatson, Nearest, criteria
from regard.regression.criteria import BINNING_TOLERANCE, CRITERIA, binned_leave_one_out
from regard.regression.smoother import Smoother
from regard.regression.sums import Observations
from regard.scores.names import KERNEL_SCORES


@pytest.mark.parametrize("degree", [0, 1])
def test_aicc_and_gcv_from_the_hat_matrix(degree):
    x, y = wave(dim=2)
    model = NadarayaWatson(bandwidth=[0.8, 1.1], degree=degree).fit(x, y)
    hat = model.weights(x)
    n, trace, error = len(y), np.trace(hat), np.mean((y - hat @ y) ** 2)
    aicc = np.log(error) + 1 + 2 * (trace + 1) / (n - trace - 2)
    assert model.aicc_ == pytest.approx(aicc, rel=1e-10)
    assert float(CRITERIA["gcv"](model.smoother_, 0).value) == pytest.approx(error / (1 - trace / n) ** 2, rel=1e-10)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_aicc_is_that_of_statsmodels():
    x, y = wave()
    theirs = KernelReg(y, x, "c", reg_type="lc", bw=np.array([0.4]))
    model = NadarayaWatson(bandwidth=0.4).fit(x, y)
    assert model.aicc_ == pytest.approx(float(np.squeeze(theirs.aic_hurvich(np.array([0.4])))), rel=1e-10)


@pytest.mark.parametrize("criterion", ["aicc", "gcv"])
def test_they_choose_a_width(criterion):
    x, y = wave(101)
    model = NadarayaWatson(bandwidth=criterion).fit(x, y)
    nearby = [NadarayaWatson(bandwidth=model.bandwidth_ * factor).fit(x, y) for factor in (0.8, 1.25)]
    assert all(float(CRITERIA[criterion](near.smoother_, 0).value) > model.criterion_ for near in nearby)


@pytest.mark.parametrize("criterion", ["aicc", "gcv"])
def test_a_curve_through_all_observations_is_never_best(criterion):
    x, y = wave()
    value = CRITERIA[criterion](NadarayaWatson("boxcar", 1e-9).fit(x, y).smoother_, 0).value
    assert float(value) == np.inf


@pytest.mark.filterwarnings("ignore::regard.regression.BandwidthWarning")
@pytest.mark.parametrize("level", [3.0, 3.3, 1e8])
@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("criterion", ["loo", "gcv"])
def test_of_widths_that_fit_alike_the_widest_is_taken(criterion, degree, level):
    """y without noise, a constant or a line: what is left is its rounding, which tells nothing about a width."""
    x, _ = wave(100)
    y = np.full(len(x), level) + degree * 3 * x[:, 0]
    model = NadarayaWatson(bandwidth=criterion, degree=degree).fit(x, y)
    assert model.bandwidth_ > np.ptp(x)
    assert model.criterion_ == 0


def test_aicc_of_y_without_noise_is_refused():
    x, _ = wave(100)
    with refuses("bandwidth", "exactly", "fitted"):
        NadarayaWatson(bandwidth="aicc").fit(x, np.full(len(x), 3.3))


@pytest.mark.parametrize("bandwidth", ["aicc", "gcv", Nearest("loo")])
def test_weights_that_are_shares_cannot_be_counted(bandwidth):
    x, y = wave(40)
    with refuses("sample_weight", "to 1", "40"):
        NadarayaWatson(bandwidth=bandwidth).fit(x, y, sample_weight=np.full(40, 1 / 40))


def smoother(x, y, kernel, width, degree, weight=None):
    weight = None if weight is None else torch.tensor(weight)
    return Smoother(Observations(torch.tensor(x), torch.tensor(y).unsqueeze(-1), weight), kernel, width, degree)


@pytest.mark.parametrize("exclude", [0, 3])
@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("width", [0.1, 0.3, 2.0])
def test_the_formula(kernel, degree, width, exclude):
    x, y = wave(31)
    found = criteria.leave_one_out(smoother(x, y, kernel, width, degree), exclude)
    expected = left_out(x, y, kernel, width, degree=degree, exclude=exclude)
    trusted = np.ones(31, dtype=bool) if degree == 0 else ~one_key_holds_the_window(x, kernel, width, exclude)
    assert trusted.sum() >= 10
    np.testing.assert_allclose(found.mean[trusted, 0], expected[trusted], rtol=1e-7)


def one_key_holds_the_window(x, kernel, width, exclude):
    """(rows,): whether the line is not determined: regard's slope is then 0, that of np.linalg.lstsq is not."""
    mass = KERNELS[kernel](np.abs(x - x.T) / width)
    rows = np.arange(len(x))
    mass[np.abs(rows - rows[:, None]) <= exclude] = 0
    mass.sort(1)
    return (mass[:, -1] > 0) & (mass[:, -2] <= 1e-12 * mass[:, -1])


def test_no_digit_is_lost_where_the_row_is_nearly_alone():
    x, y = wave(31)
    x = np.sort(x, 0)
    found = criteria.leave_one_out(smoother(x, y, "gaussian", 1e-4, 0), 0).mean[:, 0]
    distance = np.abs(x - x.T) + np.diag(np.full(31, np.inf))
    np.testing.assert_allclose(found, y[distance.argmin(1)], rtol=1e-12)


@pytest.mark.parametrize("degree", [0, 1])
def test_one_copy_goes_the_others_stay(degree):
    x, y = wave(23)
    weight = np.random.default_rng(0).integers(1, 4, 23)
    counted = criteria.leave_one_out(smoother(x, y, "biweight", 0.5, degree, weight.astype(float)), 0)
    repeated = criteria.leave_one_out(smoother(x.repeat(weight, 0), y.repeat(weight), "biweight", 0.5, degree), 0)
    np.testing.assert_allclose(counted.mean.numpy().repeat(weight, 0), repeated.mean, rtol=1e-9)


def test_a_row_alone_is_predicted_by_the_mean_of_the_others():
    x, y = np.array([[0.0], [0.1], [9.0], [20.0]]), np.array([1.0, 2.0, 4.0, 9.0])
    found = criteria.leave_one_out(smoother(x, y, "boxcar", 0.5, 0), 0)
    assert found.isolated.tolist() == [False, False, True, True]
    np.testing.assert_allclose(found.mean[:, 0], [2.0, 1.0, 4.0, 7 / 3])
    found = criteria.leave_one_out(smoother(x, y, "boxcar", 0.5, 0), 1)
    assert found.isolated.all()
    np.testing.assert_allclose(found.mean[:, 0], [6.5, 9.0, 1.0, 1.5])


WIDTHS = [1e-7, 0.003, 0.02, 0.11, 0.5, 2.0, 60.0]


def smoother_of_side_by_side(kernel, width=1.0, weights=False, rows=90, offset=0.0):
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.random(rows - 10), 5 + 0.1 * rng.random(10)])
    y = np.stack([np.sin(4 * x), rng.standard_normal(rows)], -1)
    weight = torch.from_numpy(rng.choice([0.3, 1.0, 2.0, 3.7], rows)) if weights else None
    return Smoother(Observations(torch.from_numpy(x[:, None] + offset), torch.from_numpy(y), weight), kernel, width)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("kernel", KERNEL_SCORES)
def test_every_width_is_judged_as_by_itself(kernel, weights):
    found = criteria.evaluate_many(smoother_of_side_by_side(kernel, weights=weights), "loo", WIDTHS)
    for width, judgement in zip(WIDTHS, found, strict=True):
        alone = criteria.loo(smoother_of_side_by_side(kernel, width, weights), 0)
        assert float(judgement.value) == pytest.approx(float(alone.value), rel=1e-7)
        assert judgement.isolated == alone.isolated


def test_an_offset_and_many_calls_change_nothing(monkeypatch):
    whole = criteria.evaluate_many(smoother_of_side_by_side("gaussian"), "loo", WIDTHS)
    monkeypatch.setattr(criteria, "ROWS_PER_CALL", 200)
    parts = criteria.evaluate_many(smoother_of_side_by_side("gaussian", offset=1e6), "loo", WIDTHS[1:])
    for first, second in zip(whole[1:], parts, strict=True):
        assert float(second.value) == pytest.approx(float(first.value), rel=1e-6)


def test_the_nearest_other_row_is_never_in_another_copy():
    two = Smoother(
        Observations(torch.tensor([[0.0], [1.0]]).double(), torch.tensor([[1.0], [4.0]]).double()), "gaussian", 1.0
    )
    found = criteria.evaluate_many(two, "loo", [1e-6, 1e-5, 1e-3, 0.1, 10.0])
    assert [float(judgement.value) for judgement in found] == pytest.approx([9.0] * 5)


@pytest.mark.parametrize("criterion", ["loo", "aicc", "gcv"])
@pytest.mark.parametrize("kernel", KERNEL_SCORES)
@pytest.mark.parametrize("weights", [False, True])
def test_every_criterion_of_lines_is_evaluated_as_by_itself(kernel, criterion, weights):
    plain = replace(smoother_of_side_by_side(kernel, weights=weights), degree=1)
    found = criteria.evaluate_many(plain, criterion, WIDTHS[1:])
    for width, together in zip(WIDTHS[1:], found, strict=True):
        alone = criteria.CRITERIA[criterion](replace(plain, width=width), 0)
        if together is None:
            assert width == 0.003, "only where the curve passes through all observations"
        else:
            assert float(together.value) == pytest.approx(float(alone.value), rel=1e-6)
            assert together.isolated == alone.isolated


@pytest.mark.parametrize(("columns", "exclude"), [(2, 0), (1, 2)])
def test_what_it_does_not_suit(columns, exclude):
    plain = smoother_of_side_by_side("gaussian")
    assert criteria.can_evaluate_many(plain, 0)
    other = replace(plain, data=replace(plain.data, key=plain.data.key.expand(-1, columns)))
    assert not criteria.can_evaluate_many(other, exclude)


def line(seed, rows=300, outliers=0, weights=False, offset=0.0):
    rng = np.random.default_rng(seed)
    key = np.concatenate([rng.random(rows - outliers), 3 + rng.random(outliers)])
    value = np.stack([np.sin(9 * key) + 50, rng.standard_normal(rows)], -1)
    weight = torch.from_numpy(rng.choice([0.01, 1.0, 5.5], rows)) if weights else None
    return Observations(torch.from_numpy(key[:, None] + offset), torch.from_numpy(value), weight)


def worst(data, widths):
    """Where the grid is sure: the error of each width as a share of the range, judged by the sums of one width."""
    found, accurate = binned_leave_one_out(data, widths)
    spread = data.value.amax(0) - data.value.amin(0)
    exact = [Smoother(data, "gaussian", width).pool_left_out(0).mean for width in widths]
    errors = [float(((mean - one) / spread).abs().max()) for mean, one in zip(found, exact, strict=True)]
    return [error for error, sure in zip(errors, accurate, strict=True) if sure], accurate


@given(
    st.integers(0, 2**16), st.integers(2, 60), st.sampled_from([0, 1, 2]), st.booleans(), st.sampled_from([0.0, -1e4])
)
def test_the_promise_holds(seed, rows, outliers, weights, offset):
    data = line(seed, rows + outliers, outliers, weights, offset)
    errors, _ = worst(data, np.geomspace(1e-4, 30, 12).tolist())
    assert max(errors, default=0.0) <= BINNING_TOLERANCE


@pytest.mark.parametrize("weights", [False, True])
def test_wide_kernels_are_exact(weights):
    errors, sure = worst(line(0, weights=weights), [0.02, 0.1, 1.0, 40.0])
    assert sure == [True] * 4
    assert max(errors) < 1e-13


def test_no_width_is_wide_enough_and_keys_may_be_equal():
    assert binned_leave_one_out(line(2), [1e-9, 1e-6])[1] == [False, False]
    same = Observations(torch.ones(5, 1).double(), torch.arange(5.0).double()[:, None], None)
    assert binned_leave_one_out(same, [1e-3, 2.0])[1] == [False, False]


def test_it_is_not_sure_of_narrow_kernels_and_lonely_rows():
    assert binned_leave_one_out(line(1), [1e-5, 1e-3, 0.1])[1] == [False, False, True]
    assert binned_leave_one_out(line(1, outliers=1), [0.1])[1] == [False]
    assert binned_leave_one_out(line(1, outliers=1), [5.0])[1] == [True]
