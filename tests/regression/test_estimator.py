"""The regressor keeps scikit-learn's contract, agrees with statsmodels, and says what it cannot do."""

import pickle

import mpmath
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.inspection import partial_dependence
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from statsmodels.nonparametric.kernel_regression import KernelReg
from tests.refuses import refuses
from tests.regression.curves import KERNELS, estimate, wave

from regard.regression import BandwidthWarning, EmptyWindowWarning, NadarayaWatson

quiet = pytest.mark.filterwarnings("ignore::regard.regression.BandwidthWarning")


@quiet
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [
        NadarayaWatson(),
        NadarayaWatson(bandwidth=1.0, degree=1),
        NadarayaWatson("epanechnikov", "scott", empty="nearest"),
    ]
)
def test_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_formula(kernel, degree):
    x, y = wave(dim=2)
    weight = np.random.default_rng(1).uniform(0.5, 2.5, len(x))
    query = np.random.default_rng(2).uniform(0.5, 3.5, (11, 2))
    width = np.array([1.5, 2.5])
    model = NadarayaWatson(kernel, width, degree=degree).fit(x, y, weight)
    expected = [estimate(q, x, y, kernel, width, weight=weight, degree=degree) for q in query]
    np.testing.assert_allclose(model.predict(query), expected, rtol=1e-10)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("degree", "name"), [(0, "lc"), (1, "ll")])
@pytest.mark.parametrize("width", [[0.3], [0.3, 0.5]])
def test_agreement_with_statsmodels(width, degree, name):
    x, y = wave(101, dim=len(width))
    query = np.random.default_rng(3).uniform(-0.5, 4.5, (40, len(width)))
    theirs = KernelReg(y, x, "c" * len(width), reg_type=name, bw=np.array(width))
    mean, slope = theirs.fit(query)
    model = NadarayaWatson(bandwidth=width, degree=degree).fit(x, y)
    np.testing.assert_allclose(model.predict(query), mean, rtol=0, atol=1e-10)
    # Their marginal effects of local means are no derivative (in one dimension 2/n of it).
    if degree == 1:
        np.testing.assert_allclose(model.derivative(query), slope, rtol=0, atol=1e-10)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_local_means_agree_with_statsmodels_in_the_tails():
    x, y = wave(101)
    query = np.concatenate([np.linspace(-10.0, 14.0, 61), [-6.8, 10.8]]).reshape(-1, 1)
    mean, _ = KernelReg(y, x, "c", reg_type="lc", bw=np.array([0.3])).fit(query)
    model = NadarayaWatson(bandwidth=0.3).fit(x, y)
    known = model.log_mass(query) > np.log(1e-280)
    assert known.sum() > 50
    np.testing.assert_allclose(model.predict(query)[known], mean[known], rtol=0, atol=1e-10)


def test_local_lines_in_the_tails_are_exact():
    x, y = wave(101)
    query = np.linspace(-10.0, 14.0, 13)
    model = NadarayaWatson(bandwidth=0.3, degree=1).fit(x, y)
    assert (model.log_mass(query[:, None]) > np.log(1e-280)).all()
    exact = np.array([line_in_60_digits(place, x[:, 0], y, 0.3) for place in query])
    np.testing.assert_allclose(model.predict(query[:, None]), exact, rtol=0, atol=1e-10)


def line_in_60_digits(place, x, y, width):
    """The local line at a place, by Cramer's rule."""
    with mpmath.workdps(60):
        away = [mpmath.mpf(one) - mpmath.mpf(place) for one in x.tolist()]
        kernel = [mpmath.exp(-((one / mpmath.mpf(width)) ** 2) / 2) for one in away]
        s0, s1, s2 = (mpmath.fdot(kernel, [one**power for one in away]) for power in range(3))
        moment = [one * value for one, value in zip(away, y.tolist(), strict=True)]
        t0, t1 = mpmath.fdot(kernel, y.tolist()), mpmath.fdot(kernel, moment)
        return float((s2 * t0 - s1 * t1) / (s0 * s2 - s1 * s1))


def test_far_away_the_limit_is_the_nearest_observation():
    x, y = wave()
    model = NadarayaWatson(bandwidth=0.1).fit(x, y)
    far = model.predict([[-1e6], [1e6]])
    np.testing.assert_allclose(far, [y[x[:, 0].argmin()], y[x[:, 0].argmax()]], rtol=1e-12)
    assert model.log_mass([[1e6]])[0] < -1e12


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "boxcar"])
def test_the_derivative_is_that_of_the_curve(kernel):
    x, y = wave(dim=2)
    query = np.random.default_rng(4).uniform(1, 3, (7, 2))
    model = NadarayaWatson(kernel, [1.7, 2.3]).fit(x, np.column_stack([y, y**2]))
    step = 1e-6
    numeric = [(model.predict(query + step * e) - model.predict(query - step * e)) / (2 * step) for e in np.eye(2)]
    np.testing.assert_allclose(model.derivative(query), np.stack(numeric, 1), rtol=1e-5, atol=1e-5)


def test_a_boxcar_has_no_derivative_and_says_why():
    x, y = wave()
    with refuses("kernel", "function", "step"):
        NadarayaWatson("boxcar", 1.0).fit(x, y).derivative(x)


@pytest.mark.parametrize("degree", [0, 1])
def test_a_weight_is_a_repetition(degree):
    x, y = wave(61)
    weight = np.ones(61, dtype=int)
    weight[[3, 7, 11, 20, 25]] = [0, 2, 0, 0, 2]
    counted = NadarayaWatson(degree=degree).fit(x, y, weight)
    repeated = NadarayaWatson(degree=degree).fit(x.repeat(weight, 0), y.repeat(weight))
    assert counted.bandwidth_ == pytest.approx(repeated.bandwidth_, rel=1e-7)
    assert counted.criterion_ == pytest.approx(repeated.criterion_, rel=1e-10)
    assert counted.aicc_ == pytest.approx(repeated.aicc_, rel=1e-8)
    assert counted.effective_degrees_of_freedom_ == pytest.approx(repeated.effective_degrees_of_freedom_, rel=1e-8)
    for ours, theirs in zip(counted.confidence_band(x), repeated.confidence_band(x), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    hat = counted.weights(x)
    assert hat.shape == (61, 61)
    assert (hat[:, weight == 0] == 0).all()
    np.testing.assert_allclose(hat @ y, counted.predict(x), rtol=1e-9)


@pytest.mark.parametrize("degree", [0, 1])
def test_the_trace_of_the_hat_matrix(degree):
    x, y = wave()
    model = NadarayaWatson(bandwidth=0.4, degree=degree).fit(x, y)
    assert model.effective_degrees_of_freedom_ == pytest.approx(np.trace(model.weights(x)), rel=1e-10)


def test_outputs_are_fitted_side_by_side():
    x, y = wave()
    both = NadarayaWatson(bandwidth=0.5).fit(x, np.column_stack([y, -3 * y]))
    one = NadarayaWatson(bandwidth=0.5).fit(x, y)
    assert both.predict(x).shape == (53, 2)
    np.testing.assert_allclose(both.predict(x)[:, 1], -3 * one.predict(x), rtol=1e-12)
    assert both.confidence_band(x).upper.shape == (53, 2)
    assert one.derivative(x).shape == (53, 1)


def test_it_goes_through_the_tools_of_scikit_learn():
    x, y = wave(dim=2)
    chain = make_pipeline(StandardScaler(), NadarayaWatson())
    search = GridSearchCV(chain, {"nadarayawatson__bandwidth": [0.1, 0.5, 5.0]}, cv=3).fit(x, y)
    assert search.best_params_ == {"nadarayawatson__bandwidth": 0.5}
    shown = partial_dependence(search.best_estimator_, x, features=[0], grid_resolution=5)
    assert shown["average"].shape == (1, 5)
    again = pickle.loads(pickle.dumps(clone(search.best_estimator_).fit(x, y)))
    np.testing.assert_array_equal(again.predict(x), search.predict(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_stay_tensors(dtype):
    x, y = wave(dim=2)
    tensors = torch.tensor(x, dtype=dtype), torch.tensor(y, dtype=dtype)
    model = NadarayaWatson(degree=1).fit(*tensors)
    found = model.predict(tensors[0])
    assert isinstance(found, torch.Tensor)
    assert found.dtype == dtype
    assert found.device == tensors[0].device
    plain = NadarayaWatson(degree=1).fit(x, y)
    # In float32 the criterion is flat to its rounding around its minimum, so the width itself has few digits.
    np.testing.assert_allclose(found, plain.predict(x), rtol=0, atol=1e-2 if dtype is torch.float32 else 1e-12)
    assert model.score(*tensors) == pytest.approx(plain.score(x, y), abs=1e-3)
    for part in (*model.confidence_band(tensors[0]), model.derivative(tensors[0]), model.weights(tensors[0])):
        assert isinstance(part, torch.Tensor)
        assert part.dtype == dtype


def test_half_precision_is_scored_as_it_is_fitted_and_predicted():
    x, y = (torch.tensor(part).bfloat16() for part in wave())
    weight = torch.arange(len(x)).bfloat16()
    model = NadarayaWatson(bandwidth=0.3).fit(x, y, weight)
    expected = r2_score(y.double(), model.predict(x).double(), sample_weight=weight.double())
    assert model.score(x, y, weight) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="Complex data not supported"):
        model.score(x.to(torch.complex64), y)


def test_it_is_silent_unless_asked(capsys):
    x, y = wave()
    NadarayaWatson().fit(x, y).predict(x)
    assert capsys.readouterr() == ("", "")
    NadarayaWatson(verbose=2).fit(x, y)
    assert "loo at factor" in capsys.readouterr().out


def test_the_window_without_observations():
    x, y = np.array([[0.0], [1.0], [5.0]]), np.array([1.0, 3.0, 8.0])
    query = [[0.5], [2.9], [3.0]]
    with pytest.warns(EmptyWindowWarning, match="2 of 3 queries"):
        found = NadarayaWatson("epanechnikov", 1.0).fit(x, y).predict(query)
    np.testing.assert_allclose(found, [2.0, np.nan, np.nan])
    nearest = NadarayaWatson("epanechnikov", 1.0, empty="nearest").fit(x, y)
    np.testing.assert_allclose(nearest.predict(query), [2.0, 3.0, 5.5])
    mean = NadarayaWatson("epanechnikov", 1.0, empty="mean").fit(x, y)
    np.testing.assert_allclose(mean.predict(query), [2.0, 4.0, 4.0])
    for model in (nearest, mean):
        np.testing.assert_allclose(model.weights(query) @ y, model.predict(query))
        np.testing.assert_array_equal(model.derivative(query)[1:], 0.0)
    close = NadarayaWatson("epanechnikov", 1.2, empty="mean").fit(x, y)
    assert np.isnan(close.confidence_band(query).lower).tolist() == [False, True, True]
    with refuses("bandwidth", "observations", "through", "passes"):
        mean.confidence_band(query)
    with refuses("X", "2 of", "3 queries have"):
        NadarayaWatson("epanechnikov", 1.0, empty="raise").fit(x, y).predict(query)


def test_the_caller_may_change_the_data_afterwards():
    x, y = wave()
    model = NadarayaWatson(bandwidth=0.5).fit(x, y)
    before = model.predict(x)
    asked = x.copy()
    x[:], y[:] = 0.0, 0.0
    np.testing.assert_array_equal(model.predict(asked), before)


@pytest.mark.parametrize(
    ("arguments", "argument", "word"),
    [
        ({"kernel": "gauss"}, "kernel", "'gauss'"),
        ({"bandwidth": -1.0}, "bandwidth", "-1.0"),
        ({"bandwidth": 0}, "bandwidth", "0"),
        ({"bandwidth": [1.0, 2.0]}, "bandwidth", "[1.0, 2.0]"),
        ({"bandwidth": "best"}, "bandwidth", "'best'"),
        ({"bandwidth": float("nan")}, "bandwidth", "nan"),
        ({"degree": 2}, "degree", "2"),
        ({"empty": "zero"}, "empty", "'zero'"),
        ({"exclude": -1}, "exclude", "-1"),
        ({"per_dimension": True, "bandwidth": 1.0}, "per_dimension", "True"),
        ({"exclude": 60}, "exclude", "60 for 53 rows"),
    ],
)
def test_what_is_refused(arguments, argument, word):
    x, y = wave()
    with refuses(argument, word):
        NadarayaWatson(**arguments).fit(x, y)


def test_the_edge_of_the_search_is_told():
    generator = np.random.default_rng(0)
    with pytest.warns(BandwidthWarning, match="widest"):
        NadarayaWatson().fit(generator.uniform(size=(40, 1)), generator.standard_normal(40))
    with pytest.warns(BandwidthWarning, match="all rows of X are equal"):
        model = NadarayaWatson().fit(np.ones((5, 1)), np.arange(5.0))
    assert model.predict([[1.0]]) == pytest.approx(2.0)
