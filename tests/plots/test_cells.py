"""Cells: as wide as their names need, on a page that ends somewhere."""

import pytest

from regard import plots
from regard.plots.cells import LARGEST, NARROWEST, cells_on, fit_figure


@pytest.fixture
def axes():
    return plots.canvas(4, 3)[1][0]


def test_long_names_get_wide_columns(axes):
    short = fit_figure(axes, (3, 12), None, ["a"] * 12, bar=False)
    long = fit_figure(axes, (3, 12), None, ["environment"] * 12, bar=False)
    assert long.column > short.column >= NARROWEST


def test_a_page_ends_somewhere(axes):
    fit_figure(axes, (2000, 3000), None, ["word"] * 3000, bar=True)
    width, height = axes.figure.get_size_inches()
    assert width < LARGEST + 3
    assert height < LARGEST + 3


def test_the_cells_of_others_are_measured(axes):
    cells = cells_on(axes, (10, 20), None, None)
    assert 0 < cells.column < 4 / 20
    assert 0 < cells.row < 3 / 10


def test_cells_without_names_fit_a_page(axes):
    cells = fit_figure(axes, (200, 300), None, None, bar=True)
    assert (200 * cells.row, 300 * cells.column) == (pytest.approx(6.0), pytest.approx(6.0))
