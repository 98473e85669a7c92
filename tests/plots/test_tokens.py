"""Tokens as names: short, and never on top of each other."""

import itertools
from xml.etree import ElementTree

import pytest

from regard import plots
from regard.plots.tokens import GAP, as_labels, cell_needed, staggered, text_widths, type_of


def test_what_cannot_be_seen_gets_a_sign():
    assert as_labels([" ", "", "a\nb", "\t", 7]) == ["␣", "␣", "a↵b", "⇥", "7"]


def test_an_endless_token_is_cut_with_a_sign():
    (short,) = as_labels(["x" * 100])
    assert len(short) == 24
    assert short.endswith("x…")


@pytest.mark.parametrize("cell", [0.05, 0.1, 0.2, 0.5, 2.0])
def test_names_on_a_level_stay_apart(cell):
    widths = [0.1, 0.9, 0.2, 0.4, 0.3, 0.9, 0.9, 0.1, 0.5]
    named, levels = staggered(widths, cell)
    for level in range(levels):
        row = named[level::levels]
        for one, other in itertools.pairwise(row):
            assert (other - one) * cell >= (widths[one] + widths[other]) / 2 + GAP - 1e-9
    assert named[0] == 0


def test_all_are_named_where_there_is_room():
    assert staggered([0.3, 0.3, 0.3], 0.4) == ([0, 1, 2], 1)
    assert staggered([0.3, 0.3, 0.3], 0.2) == ([0, 1, 2], 2)
    assert staggered([0.3] * 9, 0.13) == (list(range(9)), 3)
    assert staggered([0.3] * 9, 0.1)[0] == [0, 2, 4, 6, 8]
    assert cell_needed([0.5], 1) == 0.0


def test_widths_are_those_of_the_text_and_leave_nothing_behind():
    _, (axes,) = plots.canvas(3, 2)
    short, long = text_widths(axes, ["ab", "abababab"], type_of(["ab"]))
    assert long == pytest.approx(4 * short, rel=0.15)
    assert not axes.texts


def test_control_characters_and_halves_of_pairs_can_be_written_and_read(tmp_path):
    labels = as_labels(["\x00", "\x1b[0m", "\x0b", "\x7f", "\x85", "\ud800", "a\tb"])
    assert labels == ["\ufffd", "\ufffd[0m", *["\ufffd"] * 4, "a⇥b"]
    figure, (axes,) = plots.canvas(3, 2)
    axes.set_title("".join(labels))
    ElementTree.parse(plots.save_as(figure, tmp_path / "signs.svg"))
