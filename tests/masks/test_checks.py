"""What masks refuse, and the sentences in which they do."""

import pytest
import torch
from tests.refuses import refuses

from regard.errors import RegardError
from regard.masks import Mask

CPU = torch.device("cpu")
BOOL, INT, FLOAT = torch.ones(2, 3) > 0, torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 3)


def place(mask, batch=(2, 3), queries=5, keys=7):
    return mask.place(batch=batch, queries=queries, keys=keys, device=CPU)


REFUSED = {
    "lengths of floats": (
        lambda: Mask.lengths(FLOAT),
        "Mask.lengths: got float32 (2, 3) on cpu; needed an integer tensor (*leading batch). "
        "Convert it first, for example .long().",
    ),
    "lengths of booleans": (
        lambda: Mask.lengths(BOOL),
        "Mask.lengths: got bool (2, 3) on cpu; needed an integer tensor (*leading batch). "
        "For booleans write Mask.keep, Mask.drop or Mask.keys.",
    ),
    "lengths as a list": (
        lambda: Mask.lengths([3, 4]),
        "Mask.lengths: got list [3, 4]; needed an integer tensor (*leading batch). "
        "Convert it first, for example torch.tensor(...).",
    ),
    "per query without queries": (
        lambda: Mask.lengths_per_query(torch.tensor(3)),
        "Mask.lengths_per_query: got int64 () on cpu; needed an integer tensor (*leading batch, queries). "
        "Add the missing last axis.",
    ),
    "keep of floats": (
        lambda: Mask.keep(FLOAT),
        "Mask.keep: got float32 (2, 3) on cpu; needed a boolean tensor (…, queries, keys). If it holds only 0 and "
        "-inf, write Mask.keep(m == 0). Other numbers are a bias: pass them as bias=.",
    ),
    "keys of floats": (
        lambda: Mask.keys(FLOAT),
        "Mask.keys: got float32 (2, 3) on cpu; needed a boolean tensor (*leading batch, keys). If it holds only 0 and "
        "-inf, write Mask.keys(m == 0). Other numbers are a bias: pass them as bias=, with axes of size 1 for heads "
        "and queries, for example bias=m[:, None, None].",
    ),
    "drop of integers": (
        lambda: Mask.drop(INT),
        "Mask.drop: got int64 (2, 3) on cpu; needed a boolean tensor (…, queries, keys). "
        "Convert it first, for example torch.as_tensor(m, dtype=torch.bool).",
    ),
    "keep of one axis": (
        lambda: Mask.keep(BOOL[0]),
        "Mask.keep: got bool (3,) on cpu; needed a boolean tensor (…, queries, keys). "
        "For one entry per key write Mask.keys(m).",
    ),
    "keys of nothing": (
        lambda: Mask.keys(torch.tensor(True)),
        "Mask.keys: got bool () on cpu; needed a boolean tensor (*leading batch, keys). "
        "Give it one entry per key.",
    ),
    "documents of floats": (
        lambda: Mask.documents(INT, FLOAT),
        "Mask.documents: got float32 (2, 3) on cpu; needed an integer tensor (*leading batch, keys). "
        "Convert it first, for example .long().",
    ),
    "align": (
        lambda: Mask.causal("bottom_right"),
        "Mask.causal: got align='bottom_right'; needed \"top_left\", \"lower_right\" or None. "
        'Write align="lower_right" if the last query stands at the last key.',
    ),
    "the -1 of others": (
        lambda: Mask.window(-1, 0),
        "Mask.window: got -1; needed a number of keys, 0 or more, on each side; None for an unbounded side. "
        "Write None for the -1 of others; to exclude the key itself & ~Mask.window(0, 0).",
    ),
    "lengths of another batch": (
        lambda: place(Mask.lengths(torch.ones(3, dtype=torch.int64))),
        "Mask.lengths: got int64 (3,) on cpu in a call with batch axes (2, 3); needed the leading batch axes in "
        "order, each equal or 1. "
        "Reorder the axes, or give size 1 to a shared one; heads at the end may be missing.",
    ),
    "too many axes": (
        lambda: place(Mask.keys(torch.ones(2, 3, 1, 7) > 0)),
        "Mask.keys: got bool (2, 3, 1, 7) on cpu in a call with batch axes (2, 3); needed the leading batch axes in "
        "order, each equal or 1, then keys. "
        "Reorder the axes, or give size 1 to a shared one; heads at the end may be missing.",
    ),
    "keys of other keys": (
        lambda: place(Mask.keys(torch.ones(2, 1) > 0)),
        "Mask.keys: got bool (2, 1) on cpu in a call with 5 queries and 7 keys; needed a last axis with one entry "
        "for each of the keys. Pass the mask that belongs to these keys.",
    ),
    "lengths of other queries": (
        lambda: place(Mask.lengths_per_query(torch.ones(2, 7, dtype=torch.int64))),
        "Mask.lengths_per_query: got int64 (2, 7) on cpu in a call with 5 queries and 7 keys; needed a last axis "
        "with one entry for each of the queries. Pass the mask that belongs to these queries.",
    ),
    "keep from the left": (
        lambda: place(Mask.keep(torch.ones(2, 5, 7) > 0)),
        "Mask.keep: got bool (2, 5, 7) on cpu in a call of (*batch, queries, keys) = (2, 3, 5, 7); needed axes that "
        "match from the right, each equal or 1. "
        "Give a shared axis size 1: m[:, None] makes (batch, 1, queries, keys), for all heads.",
    ),
    "causal without a place": (
        lambda: place(Mask.causal()),
        "Mask.causal(): got 5 queries and 7 keys; needed as many queries as keys, or align=. "
        'Write align="lower_right" if the last query stands at the last key (decoding), '
        'align="top_left" if query 0 stands at key 0.',
    ),
    "another device": (
        lambda: place(Mask.keep(torch.ones(5, 7, dtype=torch.bool, device="meta"))),
        "Mask.keep: got bool (5, 7) on meta; needed the device of the query, cpu. "
        "Move the mask first: mask.to(query.device).",
    ),
    "a bare boolean tensor": (
        lambda: Mask.causal() & BOOL,
        "&: got bool (2, 3) on cpu; needed a Mask, because a bare value does not say what True means. "
        "Write Mask.keep(m) if True means may attend, Mask.drop(m) if True means must not; for one entry per key, "
        "Mask.keys(m) if True means a real token, ~Mask.keys(m) if True means padding.",
    ),
    "a bare integer tensor": (
        lambda: Mask.causal() | INT,
        "|: got int64 (2, 3) on cpu; needed a Mask, because a bare value does not say what True means. "
        "Write Mask.lengths(t) for numbers of keys, Mask.keys(m.bool()) for zeros and ones.",
    ),
    "a bare float tensor": (
        lambda: Mask.expect(FLOAT),
        "mask: got float32 (2, 3) on cpu; needed a Mask, because a bare value does not say what True means. "
        "If it holds only 0 and -inf, write Mask.keys(m == 0) for one entry per key, Mask.keep(m == 0) for one entry "
        "per query and key. Other numbers are a bias: pass them as bias=.",
    ),
    "a bare True": (
        lambda: Mask.expect(True),
        "mask: got bool True; needed a Mask, because a bare value does not say what True means. "
        "Write Mask.causal(), Mask.lengths(t), Mask.keep(m), …; mask=None allows everything.",
    ),
    "rows": (
        lambda: Mask.causal().select([0, 1]),
        "rows: got list [0, 1]; needed an int64 tensor with one axis. "
        "Pass the row numbers, for example torch.tensor([0, 0, 2]).",
    ),
    "rows elsewhere": (
        lambda: Mask.lengths(INT[:, 0]).select(torch.ones(3, dtype=torch.int64, device="meta")),
        "rows: got int64 (3,) on meta; needed the device of the mask, cpu. "
        "Move one of them: rows.to(device), mask.to(device).",
    ),
    "rows of a matrix aligned from the right": (
        lambda: Mask.keep(torch.ones(2, 5, 7) > 0).select(torch.tensor([0])),
        "batch_axes: got None, with Mask.keep(bool (2, 5, 7) on cpu); needed the number of batch axes, because this "
        "mask is aligned from the right. Write mask.select(rows, batch_axes=2) for (batch, heads).",
    ),
    "growing a matrix": (
        lambda: (Mask.causal() & Mask.drop(BOOL)).grow(3, 1),
        "Mask.drop: got 1 keys appended to 3; needed a mask that says who may see keys to come; this one lists what "
        "was there. Use Mask.lengths, Mask.keys, Mask.causal or Mask.window, or remember again with a new mask.",
    ),
    "growing from the wrong size": (
        lambda: Mask.keys(BOOL).grow(5, 1),
        "Mask.keys: got bool (2, 3) on cpu; needed a last axis of 5 keys, as many as there were. "
        "Grow the mask together with its keys.",
    ),
    "a truth value": (
        lambda: Mask.causal() and Mask.causal(),
        "mask: got its truth value; needed & for and, | for or, ~ for not. "
        "Write mask is None to ask whether there is one.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_every_refusal_says_what_came_what_is_needed_and_the_repair(case):
    ask, sentence = REFUSED[case]
    with pytest.raises(RegardError) as refusal:
        ask()
    assert str(refusal.value) == sentence


@pytest.mark.parametrize("join", [lambda a, b: a & b, lambda a, b: a | b])
@pytest.mark.parametrize("bare", [BOOL, True, None])
def test_a_bare_operand_is_refused_on_either_side(join, bare):
    with pytest.raises(RegardError, match="a bare value does not say what True means"):
        join(Mask.causal(), bare)
    with pytest.raises(RegardError, match="a bare value does not say what True means"):
        join(bare, Mask.causal())


@pytest.mark.parametrize("side", [True, 1.5, -2, "3"])
def test_a_window_is_counted_in_whole_keys(side):
    for ask in (lambda: Mask.window(side, 0), lambda: Mask.window(None, side)):
        with refuses("Mask.window", "0 or more"):
            ask()


@pytest.mark.parametrize("mask", [Mask.lengths_per_query(INT), Mask.documents(INT, INT), Mask.keep(BOOL)])
def test_masks_of_single_queries_cannot_grow(mask):
    with pytest.raises(RegardError, match="who may see keys to come"):
        mask.grow(3, 1)


def test_a_mask_is_not_made_of_a_bare_tensor():
    with refuses("Mask", "(2, 3)"):
        Mask(BOOL)


def test_expect_gives_back_a_mask():
    mask = Mask.causal()
    assert Mask.expect(mask) is mask
