"""The contract of the estimators: every kernel against NumPy formulas, refits and the hat matrix, by public names.

scikit-learn's own list of checks is run in tests/regression/test_estimators.py.
"""

import math
import pickle
import statistics

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from tests import oracle
from tests.refuses import refuses

from regard import RegardError
from regard.regression import BandwidthWarning, EmptyWindowWarning, NadarayaWatson, NadarayaWatsonClassifier, Nearest

KERNELS = list(oracle.KERNELS)
COMPACT = [name for name in KERNELS if name not in ("gaussian", "laplacian")]
ROWS = 23
WIDTH = {1: 1.3, 2: np.array([1.7, 2.3])}

pytestmark = pytest.mark.filterwarnings("ignore::regard.regression.BandwidthWarning")


def observations(dim=1, rows=ROWS):
    """The chapter's curve with noise, in no order."""
    rng = np.random.default_rng(7)
    x = rng.uniform(0, 4, (rows, dim))
    return x, 2 * np.sin(x[:, 0]) + x.sum(-1) + 0.5 * rng.standard_normal(rows)


def queries(dim=1):
    return np.random.default_rng(11).uniform(0.3, 3.7, (11, dim))


# --- The formulas ----------------------------------------------------------------------------------------------------


def masses(query, x, kernel, width, weight=None):
    """f(|query - x_j| / width) times the weight of each row."""
    found = np.array([oracle.KERNELS[kernel](oracle.distance(query, row, width)) for row in x])
    return found if weight is None else found * weight


def hat_row(query, x, kernel, width, degree=0, weight=None):
    """l_j(query), so that the estimate is sum_j l_j y_j: eq. 4, or the local line by weighted least squares."""
    mass = masses(query, x, kernel, width, weight)
    share = mass / mass.sum()
    if degree == 0:
        return share
    # The slope about the mean of the window, for each unit vector as response; 0 where the window does not vary.
    away = x - share @ x
    away[np.abs(away) < 1e-12] = 0.0
    root = np.sqrt(share)
    slope = np.linalg.lstsq(root[:, None] * away, np.diag(root), rcond=None)[0]
    return share + (query - share @ x) @ slope


def hat_matrix(at, x, kernel, width, degree=0, weight=None):
    return np.array([hat_row(query, x, kernel, width, degree, weight) for query in at])


def left_out(x, y, kernel, width, degree=0, labels=None):
    """The estimate for each row from all other rows; the mean of the others where no other is in its window."""
    y = y if labels is None else labels
    rows = []
    for i in range(len(x)):
        others = np.arange(len(x)) != i
        if masses(x[i], x[others], kernel, width).sum() == 0:
            rows.append(y[others].mean(0))
        else:
            rows.append(hat_row(x[i], x[others], kernel, width, degree) @ y[others])
    return np.array(rows)


def assert_close(found, expected, rtol=1e-9):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol)


# --- Prediction ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kernel", KERNELS)
def test_prediction_is_the_formula_and_the_weights_times_y(kernel, degree, dim):
    x, y = observations(dim)
    model = NadarayaWatson(kernel, WIDTH[dim], degree=degree).fit(x, y)
    expected = hat_matrix(queries(dim), x, kernel, WIDTH[dim], degree)
    assert_close(model.weights(queries(dim)), expected)
    assert_close(model.predict(queries(dim)), expected @ y)
    mass = [masses(query, x, kernel, WIDTH[dim]).sum() for query in queries(dim)]
    assert_close(model.log_mass(queries(dim)), np.log(mass))


@pytest.mark.parametrize("kernel", KERNELS)
def test_weights_of_degree_0_are_a_convex_combination(kernel):
    x, y = observations()
    model = NadarayaWatson(kernel, 1.3).fit(x, y)
    weights = model.weights(queries())
    assert (weights >= 0).all()
    assert_close(weights.sum(-1), np.ones(11))
    assert (model.predict(queries()) <= y.max()).all()
    assert (model.predict(queries()) >= y.min()).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_local_line_reproduces_a_line(kernel):
    x, _ = observations(2)
    y = 3 - 2 * x[:, 0] + 0.5 * x[:, 1]
    model = NadarayaWatson(kernel, [2.1, 2.9], degree=1).fit(x, y)
    at = queries(2)
    assert_close(model.predict(at), 3 - 2 * at[:, 0] + 0.5 * at[:, 1], 1e-8)
    assert_close(model.derivative(at), np.tile([-2.0, 0.5], (11, 1)), 1e-8)


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "boxcar"])
def test_derivative_of_local_means_is_that_of_finite_differences(kernel):
    x, y = observations()
    model = NadarayaWatson(kernel, 1.3).fit(x, y)
    step = 1e-6
    slope = (model.predict(queries() + step) - model.predict(queries() - step)) / (2 * step)
    np.testing.assert_allclose(model.derivative(queries())[:, 0], slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kernel", KERNELS)
def test_outputs_are_estimated_one_by_one(kernel, degree):
    x, y = observations()
    both = np.column_stack([y, -3 * y**2])
    found = NadarayaWatson(kernel, 1.3, degree=degree).fit(x, both).predict(queries())
    assert_close(found, hat_matrix(queries(), x, kernel, 1.3, degree) @ both)


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kernel", KERNELS)
def test_sample_weight_counts_repetitions(kernel, degree):
    x, y = observations()
    times = np.arange(ROWS) % 4
    weighted = NadarayaWatson(kernel, 1.3, degree=degree).fit(x, y, times)
    repeated = NadarayaWatson(kernel, 1.3, degree=degree).fit(x.repeat(times, 0), y.repeat(times))
    assert_close(weighted.predict(queries()), repeated.predict(queries()))
    assert_close(weighted.predict(queries()), hat_matrix(queries(), x, kernel, 1.3, degree, times) @ y)
    assert_close(weighted.log_mass(queries()), repeated.log_mass(queries()))
    assert_close(weighted.effective_degrees_of_freedom_, repeated.effective_degrees_of_freedom_)
    weights = weighted.weights(queries())
    assert weights.shape == (11, ROWS)
    assert (weights[:, times == 0] == 0).all()
    assert_close(weights @ y, weighted.predict(queries()))
    for variance in ("local", "global"):
        bands = [model.confidence_band(queries(), variance=variance) for model in (weighted, repeated)]
        assert_close(bands[0].standard_error, bands[1].standard_error, 1e-7)


@pytest.mark.parametrize("degree", [0, 1])
def test_fractional_weights_scale_the_kernel(degree):
    x, y = observations()
    weight = np.random.default_rng(3).uniform(0.1, 2.0, ROWS)
    model = NadarayaWatson("gaussian", 0.8, degree=degree).fit(x, y, weight)
    assert_close(model.predict(queries()), hat_matrix(queries(), x, "gaussian", 0.8, degree, weight) @ y)


@pytest.mark.parametrize("k", [1, 5, ROWS])
@pytest.mark.parametrize("kernel", KERNELS)
def test_nearest_takes_the_distance_to_the_kth_observation_as_width(kernel, k):
    x, y = observations()
    model = NadarayaWatson(kernel, Nearest(k), empty="nearest").fit(x, y)
    for query, found in zip(queries(), model.predict(queries()), strict=True):
        distances = np.abs(x[:, 0] - query[0])
        width = np.sort(distances)[k - 1]
        mass = masses(query, x, kernel, width)
        mass[distances == width] = 1.0 if kernel == "boxcar" else mass[distances == width] * (kernel not in COMPACT)
        expected = mass @ y / mass.sum() if mass.sum() else y[distances.argmin()]
        np.testing.assert_allclose(found, expected, rtol=1e-9)


# --- Widths from data ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kernel", KERNELS)
def test_leave_one_out_is_the_error_of_refits(kernel, degree, dim):
    # So many rows that every window has enough others for a plane that NumPy can solve.
    x, y = observations(dim, rows=ROWS if dim == 1 else 61)
    model = NadarayaWatson(kernel, "loo", degree=degree).fit(x, y)
    expected = left_out(x, y, kernel, model.bandwidth_, degree)
    assert_close(model.criterion_, np.mean((y - expected) ** 2), 1e-7)
    assert model.criterion_ <= min(model.trials_[1]) + 1e-12


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_trial_of_leave_one_out_is_the_error_of_refits(kernel, degree):
    x, y = observations()
    model = NadarayaWatson(kernel, "loo", degree=degree).fit(x, y)
    tried, values = (np.asarray(part, dtype=float).reshape(-1) for part in model.trials_)
    assert len(tried) == len(values) >= 5
    wide = tried > 1.0  # with enough observations in every window for a line that NumPy can solve
    assert wide.sum() >= 2
    for width, value in list(zip(tried[wide], values[wide], strict=True))[::5]:
        assert_close(value, np.mean((y - left_out(x, y, kernel, width, degree)) ** 2), 1e-7)


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_leave_one_out_is_what_scikit_learn_finds_by_refitting(kernel):
    x, y = observations()
    model = NadarayaWatson(kernel, "loo").fit(x, y)
    refitted = cross_val_predict(NadarayaWatson(kernel, model.bandwidth_), x, y, cv=LeaveOneOut())
    assert_close(model.criterion_, np.mean((y - refitted) ** 2))


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kernel", KERNELS)
def test_leave_one_out_of_repeated_rows_leaves_out_one_copy(kernel, degree):
    x, y = observations()
    times = 1 + np.arange(ROWS) % 3
    weighted = NadarayaWatson(kernel, "loo", degree=degree).fit(x, y, times)
    repeated_x, repeated_y = x.repeat(times, 0), y.repeat(times)
    expected = left_out(repeated_x, repeated_y, kernel, weighted.bandwidth_, degree)
    # The tricube line's minimum is where a window has hardly a second row: 1e-9 of the bandwidth changes it by 3e-8.
    rtol = 1e-7 if (kernel, degree) == ("tricube", 1) else 1e-9
    assert_close(weighted.criterion_, np.mean((repeated_y - expected) ** 2), rtol)


def test_exclude_leaves_out_rows_on_each_side():
    x, y = observations()
    model = NadarayaWatson("gaussian", "loo", exclude=2).fit(x, y)
    errors = []
    for i in range(ROWS):
        others = np.abs(np.arange(ROWS) - i) > 2
        errors.append(y[i] - hat_row(x[i], x[others], "gaussian", model.bandwidth_) @ y[others])
    assert_close(model.criterion_, np.mean(np.square(errors)))


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kernel", KERNELS)
def test_degrees_of_freedom_are_the_trace_of_the_hat_matrix(kernel, degree):
    x, y = observations()
    model = NadarayaWatson(kernel, 1.3, degree=degree).fit(x, y)
    trace = np.trace(hat_matrix(x, x, kernel, 1.3, degree))
    assert_close(model.effective_degrees_of_freedom_, trace)
    residuals = y - hat_matrix(x, x, kernel, 1.3, degree) @ y
    aicc = math.log(np.mean(residuals**2)) + 1 + 2 * (trace + 1) / (ROWS - trace - 2)
    assert_close(model.aicc_, aicc)


@pytest.mark.parametrize("criterion", ["aicc", "gcv"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_criterion_of_a_search_is_that_of_the_hat_matrix(kernel, criterion):
    x, y = observations()
    model = NadarayaWatson(kernel, criterion).fit(x, y)
    hat = hat_matrix(x, x, kernel, model.bandwidth_)
    mean, trace = np.mean((y - hat @ y) ** 2), np.trace(hat)
    expected = {
        "gcv": mean / (1 - trace / ROWS) ** 2,
        "aicc": math.log(mean) + 1 + 2 * (trace + 1) / (ROWS - trace - 2),
    }
    assert_close(model.criterion_, expected[criterion], 1e-7)
    assert model.criterion_ <= min(model.trials_[1]) + 1e-12


@pytest.mark.parametrize("rule", ["scott", "silverman"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_rule_is_its_formula_with_the_canonical_width_of_the_kernel(kernel, rule):
    """R(K) / mu2(K)^2 by quadrature, for the kernel scaled to a density (Marron and Nolan 1988)."""
    grid = (np.arange(400_000) + 0.5) / 10_000  # the middles of cells from 0 to 40

    def canonical(name):
        f = np.array([oracle.KERNELS[name](d) for d in grid[:: 40 if name == "laplacian" else 20]])
        d = grid[:: 40 if name == "laplacian" else 20]
        density = f / (2 * f.sum() * (d[1] - d[0]))
        roughness = 2 * (density**2).sum() * (d[1] - d[0])
        variance = 2 * (density * d**2).sum() * (d[1] - d[0])
        return (roughness / variance**2) ** 0.2

    for dim in (1, 2):
        x, y = observations(dim)
        constant = 1.0 if rule == "scott" else (4 / (dim + 2)) ** (1 / (dim + 4))
        expected = x.std(0) * constant * ROWS ** (-1 / (dim + 4)) * canonical(kernel) / canonical("gaussian")
        found = NadarayaWatson(kernel, rule).fit(x, y).bandwidth_
        np.testing.assert_allclose(found, expected if dim == 2 else expected[0], rtol=2e-3)


# --- Confidence bands ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variance", ["local", "global"])
@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kernel", KERNELS)
def test_confidence_band_is_that_of_the_hat_matrix(kernel, degree, variance):
    x, y = observations()
    model = NadarayaWatson(kernel, 1.3, degree=degree).fit(x, y)
    hat = hat_matrix(x, x, kernel, 1.3, degree)
    squared = (y - hat @ y) ** 2
    # The variance of a residual in units of that of the noise, where the noise is the same all around.
    share = 1 - 2 * np.diag(hat) + (hat**2).sum(-1)
    if variance == "global":
        noise = np.full(ROWS, squared.sum() / share.sum())
    else:
        smooth = hat_matrix(x, x, kernel, 1.3)
        noise = (smooth @ squared) / (smooth @ share)
    rows = hat_matrix(queries(), x, kernel, 1.3, degree)
    error = np.sqrt(rows**2 @ noise)
    band = model.confidence_band(queries(), level=0.9, variance=variance)
    wide = statistics.NormalDist().inv_cdf(0.95)
    assert_close(band.standard_error, error, 1e-7)
    assert_close(band.mean, rows @ y)
    assert_close(band.lower, rows @ y - wide * error, 1e-7)
    assert_close(band.upper, rows @ y + wide * error, 1e-7)


@pytest.mark.parametrize("level", [0, 1, -0.5, "0.9", None], ids=str)
def test_level_that_is_no_probability_is_refused(level):
    with refuses("level", "0", "1"):
        NadarayaWatson(bandwidth=1.0).fit(*observations()).confidence_band(queries(), level)


# --- Empty windows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", COMPACT)
def test_empty_window_has_the_answer_of_the_policy(kernel):
    x, y = observations()
    at = np.array([[99.0], [2.0]])
    inside = hat_row(at[1], x, kernel, 1.3) @ y

    def predicted(empty):
        return NadarayaWatson(kernel, 1.3, empty=empty).fit(x, y).predict(at)

    with pytest.warns(EmptyWindowWarning):
        found = predicted("nan")
    assert math.isnan(found[0])
    assert_close(found[1], inside)
    assert_close(predicted("nearest"), [y[x[:, 0].argmax()], inside])
    assert_close(predicted("mean"), [y.mean(), inside])
    with pytest.raises(RegardError):
        predicted("raise")
    model = NadarayaWatson(kernel, 1.3, empty="nearest").fit(x, y)
    assert model.log_mass(at)[0] == -math.inf
    assert_close(model.weights(at) @ y, model.predict(at))


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_window_without_end_is_never_empty(kernel):
    x, y = observations()
    model = NadarayaWatson(kernel, 0.01).fit(x, y)
    far = np.array([[-1e3], [1e3]])
    assert np.isfinite(model.log_mass(far)).all()
    expected = {"gaussian": [y[x[:, 0].argmin()], y[x[:, 0].argmax()]]}
    if kernel in expected:
        assert_close(model.predict(far), expected[kernel])
    assert (model.predict(far) <= y.max()).all()


# --- The classifier --------------------------------------------------------------------------------------------------


def labelled(dim=1):
    x, y = observations(dim)
    return x, np.array(["low", "middle", "high"])[np.digitize(y, [1.5, 3.0])]


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("kernel", KERNELS)
def test_probabilities_are_shares_of_the_classes(kernel, dim):
    x, label = labelled(dim)
    model = NadarayaWatsonClassifier(kernel, WIDTH[dim]).fit(x, label)
    assert list(model.classes_) == sorted(set(label))
    one_hot = (label[:, None] == model.classes_).astype(float)
    rows = hat_matrix(queries(dim), x, kernel, WIDTH[dim])
    assert_close(model.predict_proba(queries(dim)), rows @ one_hot)
    assert_close(model.weights(queries(dim)), rows)
    assert list(model.predict(queries(dim))) == [model.classes_[i] for i in (rows @ one_hot).argmax(-1)]
    assert model.score(x, label) == np.mean(model.predict(x) == label)


@pytest.mark.parametrize("kernel", KERNELS)
def test_leave_one_out_of_a_classifier_is_the_brier_score_of_refits(kernel):
    x, label = labelled()
    model = NadarayaWatsonClassifier(kernel, "loo").fit(x, label)
    one_hot = (label[:, None] == model.classes_).astype(float)
    expected = left_out(x, label, kernel, model.bandwidth_, labels=one_hot)
    assert_close(model.criterion_, np.mean((one_hot - expected) ** 2), 1e-7)


@pytest.mark.parametrize("kernel", KERNELS)
def test_sample_weight_of_a_classifier_counts_repetitions(kernel):
    x, label = labelled()
    times = 1 + np.arange(ROWS) % 3
    weighted = NadarayaWatsonClassifier(kernel, 1.3).fit(x, label, times)
    repeated = NadarayaWatsonClassifier(kernel, 1.3).fit(x.repeat(times, 0), label.repeat(times))
    assert_close(weighted.predict_proba(queries()), repeated.predict_proba(queries()))


@pytest.mark.parametrize("kernel", COMPACT)
def test_empty_window_of_a_classifier_has_the_answer_of_the_policy(kernel):
    x, label = labelled()
    model = NadarayaWatsonClassifier(kernel, 1.3).fit(x, label)
    assert_close(model.predict_proba([[99.0]])[0], [(label == name).mean() for name in model.classes_])
    nearest = NadarayaWatsonClassifier(kernel, 1.3, empty="nearest").fit(x, label)
    assert list(nearest.predict([[99.0]])) == [label[x[:, 0].argmax()]]
    with pytest.raises(RegardError):
        NadarayaWatsonClassifier(kernel, 1.3, empty="raise").fit(x, label).predict([[99.0]])


# --- What scikit-learn expects ---------------------------------------------------------------------------------------

ESTIMATORS = [
    lambda: NadarayaWatson("tricube", Nearest(5), degree=1, empty="mean", exclude=1),
    lambda: NadarayaWatson("epanechnikov", [1.5], tolerance=1e-6),
    lambda: NadarayaWatsonClassifier("biweight", 1.5, empty="nearest"),
]


@pytest.mark.parametrize("build", ESTIMATORS)
def test_clone_has_the_parameters_and_fits_the_same(build):
    model = build()
    parameters = model.get_params()
    copied = clone(model)
    assert copied.get_params() == parameters
    assert copied is not model
    x, y = labelled() if isinstance(model, NadarayaWatsonClassifier) else observations()
    np.testing.assert_array_equal(copied.fit(x, y).predict(x), model.fit(x, y).predict(x))
    changed = clone(model).set_params(kernel="gaussian", bandwidth=0.5)
    assert (changed.kernel, changed.bandwidth) == ("gaussian", 0.5)
    assert model.get_params() == parameters


@pytest.mark.parametrize("build", ESTIMATORS)
def test_pickled_estimator_predicts_the_same(build):
    model = build()
    x, y = labelled() if isinstance(model, NadarayaWatsonClassifier) else observations()
    model.fit(x, y)
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copied.predict(queries()), model.predict(queries()))
    np.testing.assert_array_equal(copied.weights(queries()), model.weights(queries()))
    assert copied.get_params().keys() == model.get_params().keys()


@pytest.mark.parametrize("kernel", KERNELS)
def test_tensors_get_the_answers_of_arrays(kernel):
    x, y = observations()
    model = NadarayaWatson(kernel, 1.3).fit(x, y)
    tensors = NadarayaWatson(kernel, 1.3).fit(torch.tensor(x), torch.tensor(y))
    asked = torch.tensor(queries())
    found = tensors.predict(asked)
    assert isinstance(found, torch.Tensor)
    assert found.device == asked.device
    assert_close(found.cpu().numpy(), model.predict(queries()))


def every_answer(model, x, y, at):
    """What an estimator answers, as arrays."""
    model.fit(x, y)
    found = {"bandwidth": model.bandwidth_, "predict": model.predict(at), "log_mass": model.log_mass(at)}
    found |= {"weights": model.weights(at), "mean": model.pool(at).mean}
    if isinstance(model, NadarayaWatsonClassifier):
        return found | {"probability": model.predict_proba(at), "score": model.score(x, y, np.arange(len(x)))}
    found |= {"band": model.confidence_band(at), "aicc": model.aicc_, "score": model.score(x, y)}
    if model.kernel != "boxcar":
        found["derivative"] = model.derivative(at)
    return found


def assert_same_answers(found, expected):
    assert found.keys() == expected.keys()
    for name, answer in found.items():
        if isinstance(answer, Nearest):
            assert answer.k == expected[name].k
        else:
            np.testing.assert_array_equal(answer, expected[name], err_msg=name)


SEARCHED = [
    *((dim, lambda kernel=kernel: NadarayaWatson(kernel, "loo")) for kernel in KERNELS for dim in (1, 2)),
    (2, lambda: NadarayaWatson("gaussian", "aicc", per_dimension=True)),
    (2, lambda: NadarayaWatson("epanechnikov", [1.0, 2.0], degree=1)),
    (1, lambda: NadarayaWatson("gaussian", "scott", degree=1)),
    (2, lambda: NadarayaWatson("tricube", Nearest("loo"), degree=1)),
    (1, lambda: NadarayaWatsonClassifier("biweight", "loo", empty="nearest")),
    (2, lambda: NadarayaWatsonClassifier("gaussian", [1.0, 2.0])),
]


@pytest.mark.filterwarnings("ignore::regard.regression.EmptyWindowWarning")
@pytest.mark.parametrize(("dim", "build"), SEARCHED, ids=lambda x: str(x() if callable(x) else x))
def test_arrays_are_computed_on_a_cpu_whatever_the_default_device(dim, build):
    """Tensors on the meta device have no values, so one that is made there by accident is an error."""
    x, y = labelled(dim) if isinstance(build(), NadarayaWatsonClassifier) else observations(dim)
    expected = every_answer(build(), x, y, queries(dim))
    with torch.device("meta"):
        found = every_answer(build(), x, y, queries(dim))
    assert_same_answers(found, expected)


@pytest.mark.parametrize(
    ("rows", "dim", "model"),
    [
        (9000, 1, NadarayaWatson("gaussian", "loo")),
        (9000, 1, NadarayaWatson("epanechnikov", "loo")),
        (2100, 2, NadarayaWatson("tricube", 0.05, empty="nearest")),
    ],
    ids=["line", "sums of powers", "plane"],
)
def test_many_rows_are_computed_on_a_cpu_whatever_the_default_device(rows, dim, model):
    x, y = observations(dim, rows)
    with torch.device("meta"):
        found = model.fit(x, y).predict(x)
    np.testing.assert_array_equal(found, model.fit(x, y).predict(x))


@pytest.mark.parametrize("words", [False, True])
def test_tensors_stay_on_their_device_whatever_the_default_device(words):
    x, y = labelled()
    y = y if words else np.unique(y, return_inverse=True)[1]
    weight, at = np.arange(1, ROWS + 1), torch.tensor(queries(), device="cpu")
    model = NadarayaWatsonClassifier("gaussian", 0.8).fit(x, y, weight)
    expected = model.predict_proba(queries()), model.score(x, y, weight)
    with torch.device("meta"):
        tensors = NadarayaWatsonClassifier("gaussian", 0.8).fit(torch.from_numpy(x), list(y), weight)
        found = tensors.predict_proba(at)
        score = tensors.score(torch.from_numpy(x), y, weight)
    assert found.device == at.device
    np.testing.assert_array_equal(found.numpy(), expected[0])
    assert score == pytest.approx(expected[1])


def test_data_that_change_later_do_not_change_the_estimator():
    x, y = observations()
    model = NadarayaWatson("gaussian", 0.8).fit(x, y)
    before = model.predict(queries())
    x[:], y[:] = 0.0, 0.0
    np.testing.assert_array_equal(model.predict(queries()), before)


def test_refused_data_leave_an_earlier_fit_as_it_was():
    x, y = observations()
    model = NadarayaWatson("gaussian", 0.8).fit(x, y)
    before = model.predict(queries())
    with pytest.raises(ValueError, match="NaN"):
        model.fit(x, np.full(ROWS, np.nan))
    np.testing.assert_array_equal(model.predict(queries()), before)


def test_order_of_the_rows_does_not_matter():
    x, y = observations(2)
    order = np.random.default_rng(5).permutation(ROWS)
    for kernel in KERNELS:
        first, second = (NadarayaWatson(kernel, WIDTH[2]).fit(x[i], y[i]) for i in (slice(None), order))
        assert_close(second.predict(queries(2)), first.predict(queries(2)))
        assert_close(second.weights(queries(2)), first.weights(queries(2))[:, order])


@pytest.mark.parametrize(
    ("parameters", "argument"),
    [
        ({"kernel": "parzen"}, "kernel"),
        ({"bandwidth": 0.0}, "bandwidth"),
        ({"bandwidth": -1.0}, "bandwidth"),
        ({"bandwidth": math.nan}, "bandwidth"),
        ({"bandwidth": "wide"}, "bandwidth"),
        ({"bandwidth": [1.0, 2.0]}, "bandwidth"),
        ({"degree": 2}, "degree"),
        ({"empty": "zero"}, "empty"),
        ({"exclude": -1}, "exclude"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"per_dimension": "yes"}, "per_dimension"),
    ],
    ids=str,
)
def test_wrong_parameter_is_refused_when_fitting(parameters, argument):
    model = NadarayaWatson(**parameters)
    with refuses(argument):
        model.fit(*observations())


@pytest.mark.parametrize("k", [0, -1, 2.5, "all", True], ids=str)
def test_nearest_needs_a_count_or_a_criterion(k):
    with refuses("k", "whole number"):
        Nearest(k)


def test_warnings_are_of_the_public_kinds():
    assert issubclass(BandwidthWarning, Warning)
    assert issubclass(EmptyWindowWarning, Warning)
