"""Invalid arguments of masks."""

import operator

import pytest
import torch
from tests.refuses import refuses

from regard.masks import Mask

CPU = torch.device("cpu")
BOOL, INT, FLOAT = torch.ones(2, 3) > 0, torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 3)


def place(mask, batch=(2, 3), queries=5, keys=7):
    return mask.place(batch=batch, queries=queries, keys=keys, device=CPU)


REFUSED = {
    "lengths of floats": (
        lambda: Mask.lengths(FLOAT),
        "Mask.lengths", "float32 (2, 3) on cpu",
    ),
    "lengths of booleans": (
        lambda: Mask.lengths(BOOL),
        "Mask.lengths", "bool (2, 3) on cpu",
    ),
    "lengths as a list": (
        lambda: Mask.lengths([3, 4]),
        "Mask.lengths", "list [3, 4]",
    ),
    "per query without queries": (
        lambda: Mask.lengths_per_query(torch.tensor(3)),
        "Mask.lengths_per_query", "int64 () on cpu",
    ),
    "keep of floats": (
        lambda: Mask.keep(FLOAT),
        "Mask.keep", "float32 (2, 3) on cpu",
    ),
    "keys of floats": (
        lambda: Mask.keys(FLOAT),
        "Mask.keys", "float32 (2, 3) on cpu",
    ),
    "drop of integers": (
        lambda: Mask.drop(INT),
        "Mask.drop", "int64 (2, 3) on cpu",
    ),
    "keep of one axis": (
        lambda: Mask.keep(BOOL[0]),
        "Mask.keep", "bool (3,) on cpu",
    ),
    "keys of nothing": (
        lambda: Mask.keys(torch.tensor(True)),
        "Mask.keys", "bool () on cpu",
    ),
    "documents of floats": (
        lambda: Mask.documents(INT, FLOAT),
        "Mask.documents", "key_ids.long()",
    ),
    "align": (
        lambda: Mask.causal("bottom_right"),
        "Mask.causal", "align='bottom_right'",
    ),
    "the -1 of others": (
        lambda: Mask.window(-1, 0),
        "Mask.window", "got left=-1; needed left to be a number of keys, 0 or more",
    ),
    "lengths of another batch": (
        lambda: place(Mask.lengths(torch.ones(3, dtype=torch.int64))),
        "Mask.lengths", "int64 (3,) on cpu in a call",
    ),
    "too many axes": (
        lambda: place(Mask.keys(torch.ones(2, 3, 1, 7) > 0)),
        "Mask.keys", "bool (2, 3, 1, 7) on cpu in a",
    ),
    "keys of other keys": (
        lambda: place(Mask.keys(torch.ones(2, 1) > 0)),
        "Mask.keys", "bool (2, 1) on cpu in a call",
    ),
    "lengths of other queries": (
        lambda: place(Mask.lengths_per_query(torch.ones(2, 7, dtype=torch.int64))),
        "Mask.lengths_per_query", "int64 (2, 7) on cpu in a call",
    ),
    "keep from the left": (
        lambda: place(Mask.keep(torch.ones(2, 5, 7) > 0)),
        "Mask.keep", "bool (2, 5, 7) on cpu in a",
    ),
    "causal without a place": (
        lambda: place(Mask.causal()),
        "Mask.causal()", "5 queries and 7 keys",
    ),
    "another device": (
        lambda: place(Mask.keep(torch.ones(5, 7, dtype=torch.bool, device="meta"))),
        "Mask.keep", "bool (5, 7) on meta",
    ),
    "a bare boolean tensor": (
        lambda: Mask.causal() & BOOL,
        "&", "bool (2, 3) on cpu",
    ),
    "a bare integer tensor": (
        lambda: Mask.causal() | INT,
        "|", "int64 (2, 3) on cpu",
    ),
    "a bare float tensor": (
        lambda: Mask.expect(FLOAT),
        "mask", "float32 (2, 3) on cpu",
    ),
    "a bare True": (
        lambda: Mask.expect(True),
        "mask", "bool True",
    ),
    "rows": (
        lambda: Mask.causal().select([0, 1]),
        "rows", "list [0, 1]",
    ),
    "rows elsewhere": (
        lambda: Mask.lengths(INT[:, 0]).select(torch.ones(3, dtype=torch.int64, device="meta")),
        "rows", "int64 (3,) on meta",
    ),
    "rows of a matrix aligned from the right": (
        lambda: Mask.keep(torch.ones(2, 5, 7) > 0).select(torch.tensor([0])),
        "batch_axes", "None, with Mask.keep(bool (2",
    ),
    "growing a matrix": (
        lambda: (Mask.causal() & Mask.drop(BOOL)).grow(3, 1),
        "Mask.drop", "1 keys appended to 3",
    ),
    "growing from the wrong size": (
        lambda: Mask.keys(BOOL).grow(5, 1),
        "Mask.keys", "bool (2, 3) on cpu",
    ),
    "a truth value": (
        lambda: Mask.causal() and Mask.causal(),
        "mask", "its truth value",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_arguments_are_refused(case):
    ask, argument, word = REFUSED[case]
    with refuses(argument, word):
        ask()


@pytest.mark.parametrize(("sign", "join"), [("&", operator.and_), ("|", operator.or_)])
@pytest.mark.parametrize("bare", [BOOL, True, None])
def test_a_bare_operand_is_refused_on_either_side(sign, join, bare):
    with refuses(sign, "a bare value"):
        join(Mask.causal(), bare)
    with refuses(sign, "a bare value"):
        join(bare, Mask.causal())


@pytest.mark.parametrize("side", [True, 1.5, -2, "3"])
def test_a_window_is_counted_in_whole_keys(side):
    for ask in (lambda: Mask.window(side, 0), lambda: Mask.window(None, side)):
        with refuses("Mask.window", "0 or more"):
            ask()


@pytest.mark.parametrize(
    ("argument", "mask"),
    [
        ("Mask.lengths_per_query", Mask.lengths_per_query(INT)),
        ("Mask.documents", Mask.documents(INT, INT)),
        ("Mask.keep", Mask.keep(BOOL)),
    ],
)
def test_masks_of_single_queries_cannot_grow(argument, mask):
    with refuses(argument, "keys appended"):
        mask.grow(3, 1)


def test_a_mask_is_not_made_of_a_bare_tensor():
    with refuses("Mask", "(2, 3)"):
        Mask(BOOL)


def test_expect_gives_back_a_mask():
    mask = Mask.causal()
    assert Mask.expect(mask) is mask
