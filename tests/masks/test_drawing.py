"""Masks as text."""

import pytest
import torch
from tests.refuses import refuses

from regard.masks import Mask


def test_causal():
    assert Mask.causal().draw(4) == (
        "          keys\n"
        "          0\n"
        "queries 0 █···\n"
        "        1 ██··\n"
        "        2 ███·\n"
        "        3 ████"
    )  # fmt: skip


def test_the_labels_keep_their_columns_past_ten():
    lines = Mask.window(1, 0).draw(queries=11, keys=11).splitlines()
    assert lines[1] == "           0    5    10"
    assert lines[2] == " queries 0 █··········"
    assert lines[-1] == "        10 ·········██"


def test_batch_elements_are_panels_and_sizes_come_from_the_mask():
    mask = Mask.lengths(torch.tensor([1, 3])) & Mask.keep(torch.ones(2, 3) > 0)
    assert mask.draw() == (
        "batch (0,)\n"
        "          keys\n"
        "          0\n"
        "queries 0 █··\n"
        "        1 █··\n"
        "batch (1,)\n"
        "          keys\n"
        "          0\n"
        "queries 0 ███\n"
        "        1 ███"
    )  # fmt: skip


def test_every_word_can_be_drawn_without_sizes():
    ids = torch.tensor([[0, 0, 1]])
    words = [Mask.causal(), Mask.window(1, None), Mask.lengths(torch.tensor(2)), Mask.lengths_per_query(ids)]
    words += [Mask.keys(ids > 0), ~Mask.drop(ids > 0), Mask.documents(ids, ids)]
    for word in (*words, Mask.causal() | Mask.keys(ids > 0)):
        assert set(word.draw()) & {"█", "·"}


def test_what_is_left_out_is_said():
    text = Mask.causal().draw(queries=1000, keys=1000, batch=(3, 5))
    assert text.count("batch (") == 8
    assert text.endswith("… 952 more queries\n… 904 more keys\n… 7 more panels")
    assert max(map(len, text.splitlines())) < 110


def test_an_empty_mask_is_drawn_as_labels():
    assert Mask.causal().draw(0) == "          keys\n          "
    empty = Mask.keep(torch.ones(0, 3) > 0)
    assert empty.draw() == (empty & Mask.keys(torch.ones(3) > 0)).draw() == empty.draw(queries=0, keys=3)


def test_a_drawing_is_refused_like_a_call():
    with refuses("Mask.causal()", "got 3", "and 5", "align="):
        Mask.causal().draw(queries=3, keys=5)


@pytest.mark.parametrize(
    ("mask", "batch"),
    [
        (Mask.lengths(torch.tensor([2, 3])) & Mask.keep(torch.ones(1, 3, 4, 4).bool()), (2, 3)),
        (Mask.lengths(torch.tensor([2, 3])) | Mask.keep(torch.ones(2, 3, 4, 4).bool()), (2, 3)),
        (Mask.documents(torch.zeros(1, 3, 4).long(), torch.zeros(2, 1, 4).long()), (2, 3)),
        (Mask.keep(torch.ones(3, 4, 4).bool()) & Mask.keys(torch.ones(2, 1, 4).bool()), (2, 3)),
    ],
)
def test_parts_that_know_different_axes_are_drawn_together(mask, batch):
    assert mask.draw() == mask.draw(batch=batch)
    assert mask.draw().count("batch") == 6
