"""What both estimators can be asked: masses, pools that merge, weights."""

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from tests.refuses import refuses
from tests.regression.curves import KERNELS, wave

import regard
from regard.regression import NadarayaWatson, NadarayaWatsonClassifier


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
