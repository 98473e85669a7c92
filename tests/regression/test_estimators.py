"""The estimators: results, parameters, refusals, weights, tensors and scikit-learn's behaviour."""

import pickle

import mpmath
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_moons
from sklearn.exceptions import NotFittedError
from sklearn.inspection import partial_dependence
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from statsmodels.nonparametric.kernel_regression import KernelReg
from tests.refuses import refuses
from tests.regression.curves import KERNELS, estimate, wave

import regard
from regard.regression import BandwidthWarning, EmptyWindowWarning, NadarayaWatson, NadarayaWatsonClassifier, Nearest


def test_the_log_of_the_kernel_mass():
    x, y = wave(dim=2)
    weight = np.random.default_rng(0).uniform(0.5, 2, len(x))
    query = np.array([[1.0, 2.0], [9.0, 9.0]])
    model = NadarayaWatson(bandwidth=[0.5, 0.7]).fit(x, y, weight)
    distance = np.sqrt((((query[:, None] - x) / [0.5, 0.7]) ** 2).sum(-1))
    expected = np.log((weight * KERNELS["gaussian"](distance)).sum(1))
    np.testing.assert_allclose(model.log_mass(query), expected, rtol=1e-10)
    assert NadarayaWatson("boxcar", 1.0).fit(x, y).log_mass([[9.0, 9.0]])[0] == -np.inf


def test_pools_of_disjoint_data_have_an_exact_union():
    x, y = wave(dim=1)
    whole = NadarayaWatson(bandwidth=0.5).fit(x, y)
    parts = [NadarayaWatson(bandwidth=0.5).fit(x[rows], y[rows]).pool(x) for rows in (slice(0, 20), slice(20, 53))]
    joined = regard.merge([regard.Attended(*map(torch.from_numpy, part[:2])) for part in parts])
    np.testing.assert_allclose(joined.output[:, 0], whole.predict(x), rtol=1e-12)
    np.testing.assert_allclose(joined.log_mass, whole.log_mass(x), rtol=1e-12)


def test_weights_of_means_are_a_convex_combination():
    x, y = wave(dim=2)
    far = np.array([[2.0, 2.0], [1e4, -1e4]])
    hat = NadarayaWatson(bandwidth=0.5).fit(x, y).weights(far)
    assert (hat >= 0).all()
    np.testing.assert_allclose(hat.sum(1), 1.0, rtol=1e-12)


@pytest.mark.parametrize(("kernel", "width"), [("boxcar", 0.1), ("gaussian", 1e-9), ("laplacian", 1e-12)])
@pytest.mark.parametrize("dim", [1, 2])
def test_weights_far_away_are_those_of_the_nearest_key(kernel, width, dim):
    generator = np.random.default_rng(0)
    x, query = generator.normal(size=(300, dim)), generator.uniform(20, 60, (300, dim))
    query *= generator.choice([-1, 1], (300, dim))
    model = NadarayaWatson(kernel, width, empty="nearest").fit(x, np.arange(300.0))
    nearest = ((query[:, None] - x) ** 2).sum(-1).argmin(-1)
    np.testing.assert_array_equal(model.weights(query), np.eye(300)[nearest])
    np.testing.assert_allclose(model.predict(query), nearest, rtol=1e-14)


@pytest.mark.parametrize("dim", [1, 2])
def test_nearest_keys_that_tie_share_as_their_weights_do(dim):
    x, y = np.repeat([[0.0], [0.0], [1.0]], dim, axis=1), np.array([0.0, 1.0, 5.0])
    model = NadarayaWatson("epanechnikov", 0.1, empty="nearest").fit(x, y, sample_weight=[3.0, 1.0, 1.0])
    query = np.full((1, dim), 0.4)
    np.testing.assert_allclose(model.weights(query), [[0.75, 0.25, 0.0]])
    np.testing.assert_allclose(model.predict(query), [0.25])


@pytest.mark.parametrize(
    ("settings", "argument", "word"),
    [
        ({"tolerance": 0}, "tolerance", "a positive number"),
        ({"tolerance": -1.0}, "tolerance", "-1.0"),
        ({"tolerance": np.nan}, "tolerance", "nan"),
        ({"tolerance": np.inf}, "tolerance", "inf"),
        ({"tolerance": "a"}, "tolerance", "'a'"),
        ({"kernel": ["gaussian"]}, "kernel", "['gaussian']"),
        ({"verbose": None}, "verbose", "None"),
        ({"per_dimension": "x"}, "per_dimension", "True or False"),
        ({"bandwidth": np.True_}, "bandwidth", "np.True_"),
        ({"degree": 1.0}, "degree", "0 (local means) or 1"),
    ],
    ids=str,
)
def test_settings_are_refused_when_it_is_fitted(settings, argument, word):
    with refuses(argument, word):
        NadarayaWatson(**{"bandwidth": 1.0} | settings).fit(*wave(20))


@pytest.mark.filterwarnings("ignore::regard.regression.BandwidthWarning")
def test_settings_may_be_numbers_of_numpy():
    x, y = wave(40)
    plain = NadarayaWatson(exclude=2, degree=1).fit(x, y)
    assert NadarayaWatson(exclude=np.int32(2), degree=np.int64(1)).fit(x, y).bandwidth_ == plain.bandwidth_
    assert NadarayaWatson(bandwidth=0.3, tolerance=np.float32(1e-6)).fit(x, y).predict(x[:1]).shape == (1,)


@pytest.mark.parametrize("name", ["bandwidth", "tolerance"])
def test_a_whole_number_beyond_all_floats_is_refused(name):
    x, y = wave(40)
    with refuses(name, "1000"):
        NadarayaWatson(**{"bandwidth": 1.0, name: 10**400}).fit(x, y)


@pytest.mark.parametrize(
    ("dtype", "bandwidth", "place", "expected"),
    [
        ("f", 0.1, 1e10, 5.5),  # all keys are equally far away in this dtype
        ("f", 1e-10, 5.0, 6.0),
        ("f", 1e-31, 0.51, 5.5 + 0.5 / 49),
        ("d", 0.1, 1e9, 6.0),
        ("d", 0.1, 1e155, 5.5),
    ],
)
@pytest.mark.parametrize("kernel", ["boxcar", "gaussian"])
@pytest.mark.parametrize("dim", [1, 2])
def test_the_nearest_observation_answers_from_any_distance(kernel, dim, dtype, bandwidth, place, expected):
    x = np.linspace(0, 1, 50).astype(dtype)
    model = NadarayaWatson(kernel, bandwidth, empty="nearest").fit(np.column_stack([x] * dim), 5 + x)
    query = np.full((1, dim), place, dtype)
    np.testing.assert_allclose(model.predict(query), expected, rtol=1e-5)
    np.testing.assert_allclose(model.weights(query) @ (5 + x), expected, rtol=1e-5)


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
@pytest.mark.parametrize("policy", ["nan", "mean", "raise"])
def test_a_smooth_kernel_is_never_empty(kernel, policy):
    x = np.linspace(0, 1, 50, dtype="f")[:, None]
    model = NadarayaWatson(kernel, 1e-20, empty=policy).fit(x, 5 + x[:, 0])
    np.testing.assert_allclose(model.predict(np.array([[7.0]], "f")), 6.0)
    np.testing.assert_allclose(model.derivative(np.array([[7.0]], "f")), 0.0)


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
@pytest.mark.parametrize("bandwidth", [1e-50, 1e50])
def test_a_width_that_the_dtype_of_x_cannot_hold_is_refused(kernel, bandwidth):
    x, y = wave(20)
    NadarayaWatson(kernel, bandwidth).fit(x, y)
    with refuses("bandwidth", "positive", "number"):
        NadarayaWatson(kernel, bandwidth).fit(x.astype("f"), y)


def test_a_policy_that_came_later_is_checked_too():
    x, y = wave(20)
    model = NadarayaWatson("boxcar", 0.1).fit(x, y).set_params(empty="bogus")
    with refuses("empty", "'bogus'"):
        model.predict(x + 100)


def without_half(x):
    return np.r_[np.zeros(len(x) // 2), np.ones(len(x) - len(x) // 2)]


@pytest.mark.parametrize(
    ("refit", "refusal"),
    [
        (lambda model, x, y: model.set_params(bandwidth=-1.0).fit(x, y, without_half(x)), "bandwidth: got -1.0"),
        (lambda model, x, y: model.set_params(bandwidth=-1.0).fit(np.c_[x, x], np.c_[y, y]), "bandwidth: got -1.0"),
        (lambda model, x, y: model.set_params(degree=2).fit(x[:10], y[:10]), "degree: got 2"),
        (lambda model, x, y: model.fit(x, y, -np.ones(len(x))), "Negative values"),
        (
            lambda model, x, y: model.fit(torch.from_numpy(x), torch.from_numpy(y), torch.zeros(len(x))),
            "sample_weight: got zeros only",
        ),
        (lambda model, x, y: model.fit(np.c_[x, x], y * np.nan), "NaN"),
    ],
    ids=["weights", "columns", "rows", "negative weights", "tensors", "values"],
)
def test_a_refused_fit_leaves_the_earlier_one_complete(refit, refusal):
    x, y = wave(40)
    model = NadarayaWatson(bandwidth=0.5).fit(x, y)
    weights, predicted = model.weights(x), model.predict(x)
    with pytest.raises(ValueError, match=refusal):
        refit(model, x, y)
    assert model.n_features_in_ == 1
    np.testing.assert_array_equal(model.weights(x), weights)
    np.testing.assert_array_equal(model.predict(x), predicted)


def test_a_refused_first_fit_leaves_the_estimator_unfitted():
    x, y = wave(20)
    model = NadarayaWatson(bandwidth=-1.0)
    with refuses("bandwidth"):
        model.fit(x, y, without_half(x))
    assert not hasattr(model, "n_features_in_")
    with pytest.raises(NotFittedError):
        model.weights(x)


def test_a_classifier_keeps_its_classes_after_a_refused_fit():
    x, y = wave(20)
    model = NadarayaWatsonClassifier(bandwidth=0.5).fit(x, y > 2)
    with refuses("bandwidth"):
        model.set_params(bandwidth=-1.0).fit(x, np.where(y > 2, "high", "low"))
    assert model.classes_.tolist() == [False, True]


@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_weights_that_drop_no_row_belong_to_the_estimator(weight):
    x, y = wave(20)
    weight = np.full(20, weight)
    weight[3:] *= weight[0] ** 2
    model = NadarayaWatson(bandwidth=0.5).fit(x, y, weight)
    expected = NadarayaWatson(bandwidth=0.5).fit(x, y, weight.copy()).weights(x)
    x_before, weight[:] = x.copy(), 7.0
    x[:10] = 0.0
    np.testing.assert_array_equal(model.weights(x_before), expected)


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


@pytest.mark.filterwarnings("ignore::regard.regression.BandwidthWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([NadarayaWatsonClassifier(), NadarayaWatsonClassifier("boxcar", "scott")])
def test_the_contract_of_scikit_learn_classifier(estimator, check):
    check(estimator)


def test_probabilities_are_pooled_zeros_and_ones():
    x, label = make_moons(80, noise=0.2, random_state=0)
    model = NadarayaWatsonClassifier().fit(x, np.array(["no", "yes"])[label])
    regression = NadarayaWatson().fit(x, label.astype(float))
    assert model.bandwidth_ == pytest.approx(regression.bandwidth_, rel=1e-6)
    np.testing.assert_allclose(model.predict_proba(x)[:, 1], regression.predict(x), rtol=1e-6)
    np.testing.assert_allclose(model.predict_proba(x).sum(1), 1.0)
    assert model.score(x, np.array(["no", "yes"])[label]) > 0.9
    # The criterion is the Brier score of the left-out probabilities, over the number of classes.
    hat = model.weights(x) - np.diag(np.diag(model.weights(x)))
    left_out = hat @ np.eye(2)[label] / hat.sum(1, keepdims=True)
    assert model.criterion_ == pytest.approx(np.mean((left_out - np.eye(2)[label]) ** 2), rel=1e-8)


@pytest.mark.parametrize("empty", ["mean", "nearest", "raise"])
def test_the_window_without_observations_classifier(empty):
    x, label = np.array([[0.0], [0.1], [1.0]]), np.array([3, 3, 7])
    model = NadarayaWatsonClassifier("boxcar", 0.2, empty=empty).fit(x, label)
    if empty == "raise":
        with refuses("X", "1 of", "1 queries"):
            model.predict([[0.7]])
        return
    expected = {"mean": ([2 / 3, 1 / 3], 3), "nearest": ([0.0, 1.0], 7)}[empty]
    np.testing.assert_allclose(model.predict_proba([[0.7]])[0], expected[0])
    assert model.predict([[0.7]])[0] == expected[1]


def test_a_class_is_never_nan():
    with refuses("empty", "'nan'"):
        NadarayaWatsonClassifier(empty="nan").fit([[0.0], [1.0]], [0, 1])


def test_tensors_stay_tensors_classifier():
    x, label = make_moons(60, noise=0.2, random_state=0)
    tensors = torch.tensor(x), torch.tensor(label) + 4
    model = NadarayaWatsonClassifier(bandwidth=Nearest(7)).fit(*tensors)
    assert isinstance(model.predict(tensors[0]), torch.Tensor)
    assert set(model.predict(tensors[0]).tolist()) == {4, 5}
    plain = NadarayaWatsonClassifier(bandwidth=Nearest(7)).fit(x, label)
    np.testing.assert_allclose(model.predict_proba(tensors[0]), plain.predict_proba(x))
    assert model.score(*tensors) == pytest.approx(plain.score(x, label))


def test_labels_of_tensors_must_be_labels():
    x = torch.randn(20, 1)
    with refuses("y", "infinity"):
        NadarayaWatsonClassifier(bandwidth=0.5).fit(x, torch.full((20,), torch.nan))
    with refuses("y", "classes", "numbers", "labels"):
        NadarayaWatsonClassifier(bandwidth=0.5).fit(x, torch.randn(20))


@pytest.mark.parametrize("fitted_on", [np.asarray, torch.as_tensor], ids=["array", "tensor"])
def test_words_are_answered_as_an_array_whatever_the_queries_are(fitted_on):
    x = np.linspace(-1, 1, 20)[:, None]
    label = np.where(x[:, 0] > 0, "above", "below")
    model = NadarayaWatsonClassifier(bandwidth=0.2).fit(fitted_on(x), label)
    assert model.predict(torch.as_tensor(x)).tolist() == model.predict(x).tolist() == label.tolist()
    assert model.score(torch.as_tensor(x), label) == model.score(x, label) == 1.0


@pytest.mark.parametrize(("kernel", "dim"), [("gaussian", 1), ("boxcar", 2)])
def test_probabilities_are_what_metrics_take(kernel, dim):
    """A mean of zeros and ones leaves [0, 1] by a rounding, here and there."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(2000, dim))
    label = x[:, 0] + 0.3 * generator.normal(size=2000) > 0
    probability = NadarayaWatsonClassifier(kernel, 0.1 * dim).fit(x, label).predict_proba(x)
    assert probability.min() >= 0
    assert probability.max() <= 1
    np.testing.assert_allclose(probability.sum(1), 1.0)
