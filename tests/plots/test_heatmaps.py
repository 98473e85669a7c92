"""`heatmap`: the picture holds the weights given, under the labels given."""

import numpy as np
import pytest
import torch
from tests.refuses import refuses

from regard import plots


@pytest.fixture
def axes():
    return plots.canvas(4, 3)[1][0]


def shown(axes):
    return np.asarray(axes.images[0].get_array())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_shows_the_weights_of_a_tensor_that_needs_grad(axes, dtype):
    weights = torch.rand(5, 7).softmax(-1).to(dtype).requires_grad_()
    assert plots.heatmap(weights, ax=axes) is axes
    np.testing.assert_array_equal(shown(axes), weights.detach().double().numpy())


def test_takes_arrays_and_lists(axes):
    plots.heatmap([[0.25, 0.75], [1.0, 0.0]], ax=axes)
    plots.heatmap(np.eye(3), ax=axes)
    np.testing.assert_array_equal(shown(axes), [[0.25, 0.75], [1.0, 0.0]])
    np.testing.assert_array_equal(np.asarray(axes.images[1].get_array()), np.eye(3))


def test_zero_has_no_ink_whatever_the_smallest_weight(axes):
    plots.heatmap([[0.4, 0.6]], ax=axes)
    assert axes.images[0].norm.vmin == 0.0
    assert axes.images[0].cmap(0.0)[:3] == pytest.approx((1, 1, 1), abs=0.05)


def test_rows_are_queries_and_columns_are_keys(axes):
    plots.heatmap(torch.full((2, 3), 1 / 3), queries=["il", "dort"], keys=["he", "is", "asleep"], ax=axes)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["il", "dort"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["he", "is", "asleep"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("key", "query")


def names(axes):
    return [label.get_text().strip("\n") for label in axes.get_xticklabels()]


def overlapping(labels):
    """Pairs of labels that meet, on the figure as it is drawn; a label's box is that of its last line."""
    from matplotlib.transforms import Bbox

    labels[0].figure.canvas.draw()
    boxes = []
    for label in labels:
        box = label.get_window_extent()
        lines = 1 + label.get_text().count("\n")
        boxes.append(Bbox.from_extents(box.x0, box.y0, box.x1, box.y0 + 0.95 * box.height / lines))
    return [(i, j) for i, one in enumerate(boxes) for j, other in enumerate(boxes[:i]) if one.overlaps(other)]


def test_many_labels_are_thinned_but_stay_at_their_keys(axes):
    plots.heatmap(torch.full((1, 119), 1 / 119), keys=range(119), ax=axes)
    assert 3 <= len(names(axes)) < 119
    assert names(axes) == [f"{tick:g}" for tick in axes.get_xticks()]
    step = round(axes.get_xticks()[1])
    assert axes.get_xlabel() == f"key (one in {step} is named)"


@pytest.mark.parametrize("count", [1, 4, 25, 90])
def test_tokens_stand_upright_and_apart_on_a_figure_of_its_own(count, close_figures):
    tokens = [("of", "environmental", "a", "negotiations", "is")[i % 5] for i in range(count)]
    axes = plots.heatmap(torch.rand(count, count), queries=tokens, keys=tokens)
    assert all(label.get_rotation() == 0 for label in axes.get_xticklabels())
    assert overlapping(axes.get_xticklabels()) == []
    assert overlapping(axes.get_yticklabels()) == []
    if count <= 25:
        assert names(axes) == tokens
        frame = axes.figure.bbox
        boxes = [label.get_window_extent() for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
        assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 for box in boxes)


def test_a_dollar_sign_is_no_formula(axes):
    plots.heatmap([[0.5, 0.5]], keys=["$5$", "x_1"], ax=axes)
    axes.figure.canvas.draw()
    assert names(axes) == ["$5$", "x_1"]


def test_on_a_dark_page_no_weight_is_no_light(close_figures):
    from matplotlib import pyplot

    with pyplot.style.context("dark_background"):
        axes = plots.heatmap([[0.0, 1.0]], keys=["he", "sleeps"])
    low, high = (sum(axes.images[0].cmap(weight)[:3]) for weight in (0.0, 1.0))
    assert low < 0.5 < 2 < high
    assert sum(axes.figure.get_facecolor()[:3]) < 0.5
    assert axes.xaxis.label.get_color() == "#E6E7E9"


def test_makes_a_figure_that_pyplot_knows():
    from matplotlib import pyplot

    made = plots.heatmap([[1.0]])
    assert made.figure.number in pyplot.get_fignums()
    pyplot.close(made.figure)


def test_refuses_labels_that_do_not_fit(axes):
    with refuses("keys", "2 labels"):
        plots.heatmap(torch.zeros(2, 3), keys=["a", "b"], ax=axes)
    with refuses("queries", "3 labels", "needed 2"):
        plots.heatmap(torch.zeros(2, 3), queries=["a", "b", "c"], ax=axes)


def test_refuses_weights_of_several_heads(axes):
    with refuses("weights", "(2, 4, 5, 7)", "(queries, keys)", "weights[0, 0]"):
        plots.heatmap(torch.zeros(2, 4, 5, 7), ax=axes)


def test_a_common_scale_without_a_bar():
    _, (ax,) = plots.canvas(3, 2)
    plots.heatmap([[0.1, 0.9]], darkest=2.0, bar=False, ax=ax)
    assert ax.images[0].get_clim() == (0.0, 2.0)
    assert ax.figure.axes == [ax]


def test_where_nothing_has_weight_the_page_is_empty(axes):
    for nothing in (torch.zeros(3, 3), torch.full((3, 3), torch.nan)):
        assert plots.heatmap(nothing, bar=False, ax=axes).images[-1].get_clim() == (0.0, 1.0)


def test_without_labels_cells_are_numbered_by_whole_numbers(axes):
    plots.heatmap(torch.rand(3, 3), bar=False, ax=axes)
    places = [*axes.get_xticks(), *axes.get_yticks()]
    assert all(place == round(place) for place in places)


def test_names_of_the_sides_are_no_formulas(axes):
    plots.heatmap(torch.rand(2, 2), names=("cost $^$", "a$_$"), bar=False, ax=axes)
    axes.figure.draw_without_rendering()
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("cost $^$", "a$_$")


def test_rows_and_columns_are_numbered_whole():
    ax = plots.heatmap(np.ones((1, 2)) / 2)
    for ticks, limits in ((ax.get_xticks(), ax.get_xlim()), (ax.get_yticks(), ax.get_ylim())):
        shown = [tick for tick in ticks if min(limits) <= tick <= max(limits)]
        assert shown
        assert all(tick == round(tick) for tick in shown)


def test_a_number_is_no_label():
    with refuses("queries", "needed 2"):
        plots.heatmap(np.ones((2, 2)), queries=5)


@pytest.mark.parametrize("darkest", ["a", "0.5", True, [0.5, 1.0], torch.ones(2), float("nan"), -1.0])
def test_the_darkest_weight_is_a_number(axes, darkest):
    with refuses("darkest", "above 0"):
        plots.heatmap([[0.5, 0.5]], darkest=darkest, ax=axes)


def test_the_darkest_weight_may_be_that_of_a_tensor(axes):
    weights = torch.tensor([[0.25, 0.75]])
    plots.heatmap(weights, darkest=weights.max(), ax=axes)
    assert axes.images[0].get_clim() == (0.0, 0.75)
