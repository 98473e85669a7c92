"""The regression room's answers are those of the estimator; what is wrong is a sentence."""

import numpy as np
import pytest

from regard.regression import NadarayaWatson
from regard.scores.names import KERNEL_SCORES
from regard.studio.limits import MOST_POINTS, PLACES
from regard.studio.regression import offer


def ask(client, **changes):
    asked = {"x": offer()["x"], "y": offer()["y"], "kernel": "gaussian", "bandwidth": 0.3, "low": 0.0, "high": 4.0,
             "query": 1.5, "whole": True, "level": 0.9, **changes}  # fmt: skip
    return client.post("/api/regression/fit", json=asked)


@pytest.mark.parametrize("kernel", KERNEL_SCORES)
@pytest.mark.parametrize("degree", [0, 1])
def test_curve_band_and_weights_are_the_estimators(client, kernel, degree):
    answer = ask(client, kernel=kernel, degree=degree, bandwidth=0.6).json()
    X, y = np.array(offer()["x"])[:, None], np.array(offer()["y"])  # noqa: N806
    model = NadarayaWatson(kernel, 0.6, degree=degree).fit(X, y)
    band = model.confidence_band(np.linspace(0, 4, PLACES)[:, None], level=0.9)
    for name in ("mean", "lower", "upper"):
        np.testing.assert_allclose(answer[name], getattr(band, name), rtol=1e-12)
    np.testing.assert_allclose(answer["weights"], model.weights([[1.5]])[0], rtol=1e-12)
    assert answer["at"]["mean"] == pytest.approx(float(np.dot(answer["weights"], y)))
    assert answer["at"]["rests_on"] == pytest.approx(1 / np.square(answer["weights"]).sum())
    assert answer["degrees_of_freedom"] == pytest.approx(model.effective_degrees_of_freedom_)
    assert answer["gaps"] == 0


def test_without_a_band_there_is_none(client):
    for degree in (0, 1):
        whole, quick = ask(client, degree=degree).json(), ask(client, degree=degree, whole=False).json()
        assert "lower" not in quick
        assert "lower" not in quick["at"]
        assert quick["degrees_of_freedom"] is None
        assert quick["mean"] == pytest.approx(whole["mean"])
        assert quick["weights"] == whole["weights"]


def test_a_band_without_the_rest(client):
    whole, band = ask(client).json(), ask(client, whole=False, band=True).json()
    assert band["upper"] == whole["upper"]
    assert band["degrees_of_freedom"] is None


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("degree", [0, 1])
def test_a_place_that_no_point_can_see_is_a_gap(client, whole, degree):
    points = {"x": [0.0, 0.1, 0.2, 4.0, 4.1], "y": [0, 1, 0, 5, 6]}
    answer = ask(client, **points, kernel="boxcar", bandwidth=0.3, query=2.0, whole=whole, degree=degree).json()
    assert answer["at"]["mean"] is None
    assert set(answer["weights"]) == {0.0}
    missing = [mean is None for mean in answer["mean"]]
    places = np.array(answer["places"])
    expected = np.abs(places[:, None] - [0.0, 0.1, 0.2, 4.0, 4.1]).min(1) > 0.3
    assert missing == expected.tolist()
    assert answer["gaps"] == expected.sum()


def test_where_the_noise_cannot_be_told_the_curve_comes_with_the_reason(client):
    answer = ask(client, x=[0, 1, 2], y=[0, 1, 0], bandwidth=0.001).json()
    assert answer["mean"][0] == 0
    assert "upper" not in answer
    assert answer["notes"] == [
        "No band: bandwidth: got a curve that passes through all observations; needed residuals from which the noise "
        "can be estimated. Widen the bandwidth, or fit more rows."
    ]


@pytest.mark.parametrize("criterion", ["loo", "aicc", "gcv"])
def test_a_width_that_is_searched_for(client, criterion):
    answer = ask(client, criterion=criterion).json()
    X, y = np.array(offer()["x"])[:, None], np.array(offer()["y"])  # noqa: N806
    assert answer["bandwidth"] == NadarayaWatson("gaussian", criterion).fit(X, y).bandwidth_


def test_what_the_search_warns_of_is_told(client):
    x = np.linspace(0, 1, 30)
    answer = ask(client, x=x.tolist(), y=(0 * x + np.cos(40 * np.arange(30))).tolist(), criterion="loo").json()
    assert any("bandwidth" in note or "width" in note for note in answer["notes"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x": [], "y": []}, "points: got 0 x and 0 y; needed at least one point"),
        ({"x": [1], "y": [1, 2]}, "points: got 1 x and 2 y"),
        ({"x": [0] * (MOST_POINTS + 1)}, "x: got 5,001; needed at most 5,000"),
        ({"x": ["<b>"]}, "x: got '<b>' at number 1; needed finite numbers"),
        ({"x": [True, False], "y": [0, 1]}, "x: got True at number 1"),
        ({"x": [1e300, 0], "y": [0, 1]}, "points: got a point with x = 1e+300"),
        ({"x": [10**400, 0], "y": [0, 1]}, "at number 1; needed finite numbers"),
        ({"kernel": "../../etc/passwd"}, "kernel: got '../../etc/passwd'; needed one of gaussian"),
        ({"kernel": None}, "kernel: got nothing"),
        ({"bandwidth": 0}, "bandwidth: got 0; needed a number from 1e-09"),
        ({"bandwidth": "loo"}, "bandwidth: got 'loo'"),
        ({"degree": 2}, "degree: got 2; needed a whole number from 0 to 1"),
        ({"degree": 0.5}, "degree: got 0.5"),
        ({"level": 1}, "level: got 1; needed a number from 0.5 to 0.999"),
        ({"criterion": "best"}, "criterion: got 'best'"),
        ({"whole": False, "band": "yes"}, "band: got 'yes'; needed true or false"),
        ({"whole": 1}, "whole: got 1; needed true or false"),
        ({"x": {"0": 1}}, "x: got {'0': 1}; needed a list"),
        ({"query": None}, "query: got nothing"),
        ({"x": [1, 1], "y": [0, 1], "criterion": "loo"}, "points: got 1 different x; needed at least 3"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_its_repair(client, changes, said):
    answer = ask(client, **changes)
    assert answer.status_code == 422
    assert said in answer.json()["error"]
    assert answer.json()["error"].endswith(".")


def test_the_page_begins_with_the_chapters_points(client):
    told = client.get("/api/regression").json()
    assert len(told["x"]) == len(told["y"]) == 100
    assert told["kernels"] == list(KERNEL_SCORES)
