"""The classifier pools zeros and ones, and keeps scikit-learn's contract."""

import numpy as np
import pytest
import torch
from sklearn.datasets import make_moons
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.refuses import refuses

from regard.regression import NadarayaWatson, NadarayaWatsonClassifier, Nearest


@pytest.mark.filterwarnings("ignore::regard.regression.BandwidthWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([NadarayaWatsonClassifier(), NadarayaWatsonClassifier("boxcar", "scott")])
def test_the_contract_of_scikit_learn(estimator, check):
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
def test_the_window_without_observations(empty):
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


def test_tensors_stay_tensors():
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
