"""The contract of masks: every constructor against its definition in loops, through public names only."""

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from tests import bounds, oracle
from tests.refuses import refuses

import regard
from regard import Mask, attend
from regard.scores import Additive

B, H, Q, K = 2, 3, 5, 7
SIZES = ((B, H), Q, K)
FEW = [[4, 0, 9], [7, 1, 3]]
"""A length for each row and head: none of the keys, all, more than there are."""
PER_QUERY = [[0, 3, 7, 1, 9], [2, 2, 5, 0, 6]]
QUERY_IDS, KEY_IDS = [[0, 0, 1, 2, 5], [1, 1, 1, 0, 2]], [[0, 0, 1, 1, 2, 2, 2], [0, 1, 0, 1, 3, 3, 1]]


def is_listed(*cell):
    """A fixed irregular pattern, in which query 3 may attend to nothing."""
    return sum((2 * n + 3) * (x + 1) ** 2 for n, x in enumerate(cell)) % 7 < 4 and cell[-2:-1] != (3,)


def listed(*sizes):
    cells = [is_listed(*cell) for cell in itertools.product(*map(range, sizes))]
    return torch.tensor(cells).reshape(sizes)


def ints(numbers):
    return torch.tensor(numbers)


REAL = [[True, True, False, True, False, False, True], [False, True, True, True, True, False, False]]

# How a mask is built, and its definition: may query i attend to key j, in row b and head h?
CASES = {
    "lengths": (lambda: Mask.lengths(ints([4, 0])), lambda b, h, i, j: j < [4, 0][b]),
    "lengths per head": (lambda: Mask.lengths(ints(FEW)), lambda b, h, i, j: j < FEW[b][h]),
    "lengths shared": (lambda: Mask.lengths(ints(5)), lambda b, h, i, j: j < 5),
    "lengths int32": (lambda: Mask.lengths(ints([4, 0]).int()), lambda b, h, i, j: j < [4, 0][b]),
    "lengths_per_query": (lambda: Mask.lengths_per_query(ints(PER_QUERY)), lambda b, h, i, j: j < PER_QUERY[b][i]),
    "lengths_per_query shared": (
        lambda: Mask.lengths_per_query(ints(PER_QUERY[0])),
        lambda b, h, i, j: j < PER_QUERY[0][i],
    ),
    "keep": (lambda: Mask.keep(listed(B, H, Q, K)), lambda b, h, i, j: is_listed(b, h, i, j)),
    "keep shared": (lambda: Mask.keep(listed(Q, K)), lambda b, h, i, j: is_listed(i, j)),
    "keep per row": (lambda: Mask.keep(listed(B, Q, K)[:, None]), lambda b, h, i, j: is_listed(b, i, j)),
    "keep per head": (lambda: Mask.keep(listed(H, Q, K)), lambda b, h, i, j: is_listed(h, i, j)),
    "keep one row of keys": (lambda: Mask.keep(listed(H, 1, K)), lambda b, h, i, j: is_listed(h, 0, j)),
    "drop": (lambda: Mask.drop(listed(B, H, Q, K)), lambda b, h, i, j: not is_listed(b, h, i, j)),
    "drop shared": (lambda: Mask.drop(listed(Q, K)), lambda b, h, i, j: not is_listed(i, j)),
    "keys": (lambda: Mask.keys(ints(REAL)), lambda b, h, i, j: REAL[b][j]),
    "keys per head": (lambda: Mask.keys(listed(B, H, K)), lambda b, h, i, j: is_listed(b, h, j)),
    "keys shared": (lambda: Mask.keys(ints(REAL[0])), lambda b, h, i, j: REAL[0][j]),
    "documents": (
        lambda: Mask.documents(ints(QUERY_IDS), ints(KEY_IDS)),
        lambda b, h, i, j: QUERY_IDS[b][i] == KEY_IDS[b][j],
    ),
    "documents shared": (
        lambda: Mask.documents(ints(QUERY_IDS[0]), ints(KEY_IDS)),
        lambda b, h, i, j: QUERY_IDS[0][i] == KEY_IDS[b][j],
    ),
    "causal top_left": (lambda: Mask.causal("top_left"), lambda b, h, i, j: j <= i),
    "causal lower_right": (lambda: Mask.causal("lower_right"), lambda b, h, i, j: j <= i + K - Q),
    "window top_left": (lambda: Mask.window(2, 1, "top_left"), lambda b, h, i, j: i - 2 <= j <= i + 1),
    "window lower_right": (lambda: Mask.window(1, 0, "lower_right"), lambda b, h, i, j: i + 1 <= j <= i + 2),
    "window without left": (lambda: Mask.window(None, 1, "top_left"), lambda b, h, i, j: j <= i + 1),
    "window without right": (lambda: Mask.window(1, None, "top_left"), lambda b, h, i, j: j >= i - 1),
    "window without ends": (lambda: Mask.window(None, None, "top_left"), lambda b, h, i, j: True),
    "from_multihead": (
        lambda: Mask.from_multihead(listed(B, H, Q, K).flatten(0, 1), ~ints(REAL), heads=H),
        lambda b, h, i, j: not is_listed(b, h, i, j) and REAL[b][j],
    ),
    "from_multihead shared": (lambda: Mask.from_multihead(listed(Q, K)), lambda b, h, i, j: not is_listed(i, j)),
    "from_multihead padding": (
        lambda: Mask.from_multihead(key_padding_mask=~ints(REAL)),
        lambda b, h, i, j: REAL[b][j],
    ),
    "from_sdpa": (lambda: Mask.from_sdpa(listed(B, H, Q, K)), lambda b, h, i, j: is_listed(b, h, i, j)),
    "and": (
        lambda: Mask.causal("lower_right") & Mask.lengths(ints([4, 6])),
        lambda b, h, i, j: j <= i + K - Q and j < [4, 6][b],
    ),
    "or": (
        lambda: Mask.window(0, 0, "top_left") | Mask.lengths(ints([1, 0])),
        lambda b, h, i, j: i == j or j < [1, 0][b],
    ),
    "not": (lambda: ~Mask.window(0, 0, "top_left"), lambda b, h, i, j: i != j),
}
JOINED = {"and", "or", "not"}


def brute_force(name):
    rule = CASES[name][1]
    cells = [bool(rule(*cell)) for cell in itertools.product(range(B), range(H), range(Q), range(K))]
    return np.array(cells).reshape(B, H, Q, K)


def matrix(mask, batch=(B, H), queries=Q, keys=K):
    """The mask as an array of booleans, True where a query may attend."""
    return mask.to_sdpa(batch, queries, keys).cpu().numpy()


def assert_equal(found, expected):
    np.testing.assert_array_equal(found, expected)


def test_every_constructor_of_a_mask_has_a_case_here():
    constructors = {name for name, member in vars(Mask).items() if isinstance(member, staticmethod)} - {"expect"}
    assert {name.split()[0] for name in CASES} - JOINED == constructors


@pytest.mark.parametrize("name", CASES)
def test_mask_is_its_definition(name):
    assert_equal(matrix(CASES[name][0]()), brute_force(name))


@pytest.mark.parametrize("align", [None, "top_left", "lower_right"])
def test_causal_and_window_need_no_align_for_as_many_queries_as_keys(align):
    assert_equal(matrix(Mask.causal(align), (), Q, Q), oracle.causal(Q, Q))
    window = [[abs(i - j) <= 1 for j in range(Q)] for i in range(Q)]
    assert_equal(matrix(Mask.window(1, 1, align), (), Q, Q), window)


@pytest.mark.parametrize("mask", [Mask.causal(), Mask.window(1, 1)], ids=str)
def test_align_is_needed_for_other_numbers_of_queries_than_keys(mask):
    with refuses(str(mask), "5 queries and 7 keys", "align"):
        mask.to_sdpa((B,), Q, K)
    with refuses(str(mask), "5 queries and 7 keys", "align"):
        attend(torch.randn(Q, 4), torch.randn(K, 4), torch.randn(K, 4), mask=mask)


# --- Algebra ---------------------------------------------------------------------------------------------------------

PAIRS = list(itertools.combinations([name for name in CASES if name not in JOINED], 2))[::7]


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_masks_combine_as_booleans(left, right):
    a, b = CASES[left][0](), CASES[right][0]()
    true_a, true_b = brute_force(left), brute_force(right)
    assert_equal(matrix(a & b), true_a & true_b)
    assert_equal(matrix(a | b), true_a | true_b)
    assert_equal(matrix(~(a & b)), ~true_a | ~true_b)
    assert_equal(matrix(~a | ~b), ~true_a | ~true_b)
    assert_equal(matrix(~(a | b)), ~true_a & ~true_b)
    assert_equal(matrix(~a & ~b), ~true_a & ~true_b)
    assert_equal(matrix(a & (b | ~a)), true_a & true_b)


@pytest.mark.parametrize("name", CASES)
def test_double_negation_is_the_mask(name):
    mask = CASES[name][0]()
    assert_equal(matrix(~mask), ~brute_force(name))
    assert_equal(matrix(~~mask), brute_force(name))
    assert_equal(matrix(mask.negated()), ~brute_force(name))


def test_assignment_operators_make_a_new_mask():
    first = mask = Mask.lengths(ints([4, 6]))
    mask &= Mask.causal("lower_right")
    assert_equal(matrix(mask), brute_force("and"))
    assert_equal(matrix(first)[1], np.broadcast_to(np.arange(K) < 6, (H, Q, K)))
    mask = Mask.window(0, 0, "top_left")
    mask |= Mask.lengths(ints([1, 0]))
    assert_equal(matrix(mask), brute_force("or"))


# --- Conversions and copies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_conventions_of_torch_are_written_and_read_back(name):
    mask, right = CASES[name][0](), brute_force(name)
    dropped = mask.to_multihead(B, H, Q, K)
    assert dropped.dtype == torch.bool
    assert_equal(dropped.cpu().numpy(), ~right.reshape(B * H, Q, K))
    assert_equal(matrix(Mask.from_multihead(dropped, heads=H)), right)
    assert_equal(matrix(Mask.from_sdpa(mask.to_sdpa(*SIZES))), right)


@pytest.mark.parametrize("name", CASES)
def test_written_mask_belongs_to_the_caller(name):
    mask = CASES[name][0]()
    mask.to_sdpa(*SIZES)[0, 0, 0, 0].logical_not_()
    mask.to_multihead(B, H, Q, K)[0, 0, 0].logical_not_()
    assert_equal(matrix(mask), brute_force(name))


@pytest.mark.parametrize("name", CASES)
def test_copies_mean_the_same(name):
    mask = CASES[name][0]()
    for copied in (copy.copy(mask), copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
        assert_equal(matrix(copied), brute_force(name))
        assert repr(copied) == repr(mask)
    moved = mask.to("cpu")
    assert_equal(matrix(moved), brute_force(name))
    assert repr(moved) == repr(mask).replace(str(BARE.device), "cpu")


@pytest.mark.parametrize("name", ["lengths", "lengths_per_query", "keep", "drop", "keys", "documents", "and"])
def test_mask_moves_to_another_device(name):
    moved = CASES[name][0]().to("meta").to_sdpa(*SIZES)
    assert moved.device.type == "meta"
    assert moved.shape == (B, H, Q, K)


def test_padding_tensor_that_changes_later_does_not_change_the_mask():
    lengths, per_query, real = ints([4, 6]), ints(PER_QUERY), ints(REAL)
    masks = [Mask.lengths(lengths), Mask.lengths_per_query(per_query), Mask.keys(real)]
    before = [matrix(mask).copy() for mask in masks]
    lengths.zero_(), per_query.zero_(), real.logical_not_()
    for mask, expected in zip(masks, before, strict=True):
        assert_equal(matrix(mask), expected)


@pytest.mark.parametrize("name", CASES)
def test_drawing_shows_every_cell(name):
    drawn = CASES[name][0]().draw(Q, K, (B, H)).splitlines()
    rows = [line.split()[-1] for line in drawn if set(line.split()[-1]) <= {"█", "·"}]
    assert_equal(np.array([[cell == "█" for cell in row] for row in rows]), brute_force(name).reshape(-1, K))
    assert [line for line in drawn if line.startswith("batch")] == [f"batch {(b, h)}" for b, h in np.ndindex(B, H)]


def test_drawing_says_what_it_leaves_out():
    drawn = Mask.causal().draw(200, 200, (11,))
    assert "more queries" in drawn
    assert "more keys" in drawn
    assert "more panels" in drawn


def test_drawing_takes_its_sizes_from_the_tensors_of_the_mask():
    assert Mask.keep(listed(Q, K)).draw() == Mask.keep(listed(Q, K)).draw(Q, K)
    assert len(Mask.causal().draw().splitlines()) == 8 + 2


def test_repr_names_the_constructor():
    for name in ("lengths", "lengths_per_query", "keep", "drop", "keys", "documents", "causal", "window"):
        case = next(key for key in CASES if key.split()[0] == name)
        assert repr(CASES[case][0]()).startswith(f"Mask.{name}(")
    assert repr(~(Mask.causal() & Mask.window(2, None))) == "~(Mask.causal() & Mask.window(2, None))"


# --- Growing and selecting -------------------------------------------------------------------------------------------

GROWS = ["lengths", "lengths per head", "lengths shared", "keys", "keys per head", "keys shared"]


@pytest.mark.parametrize("name", GROWS)
@pytest.mark.parametrize("negated", [False, True])
def test_every_query_may_see_the_keys_a_mask_grows_by(name, negated):
    mask, old = CASES[name][0](), brute_force(name)
    if negated:
        mask, old = ~mask, ~old
    grown = mask.grow(K, 3)
    assert_equal(matrix(grown, keys=K + 3), np.concatenate([old, np.ones((B, H, Q, 3), bool)], -1))
    twice = mask.grow(K, 1).grow(K + 1, 2)
    assert_equal(matrix(twice, keys=K + 3), matrix(grown, keys=K + 3))
    assert_equal(matrix(mask.grow(K, 0)), old)


def test_joined_masks_grow_by_their_parts():
    lengths, keys, causal = Mask.lengths(ints([4, 6])), Mask.keys(ints(REAL)), Mask.causal("lower_right")
    new = np.arange(K + 3) >= K
    short = np.array([[j < n for j in range(K + 3)] for n in (4, 6)])[:, None, None]
    real = np.pad(np.array(REAL), ((0, 0), (0, 3)))[:, None, None]
    before = oracle.causal(Q, K + 3, K + 3 - Q)
    for mask, expected in (
        (lengths & causal, (short | new) & before),
        (causal & lengths, (short | new) & before),
        (lengths & ~keys, (short & ~real) | new),
        (~keys | lengths, short | ~real | new),
        (~(keys & ~lengths), short | ~real | new),
        (~(keys | causal), (~real | new) & ~before),
    ):
        found = matrix(mask.grow(K, 3), keys=K + 3)
        assert_equal(found, np.broadcast_to(expected, (B, H, Q, K + 3)))


@pytest.mark.parametrize("name", ["lengths_per_query", "keep", "drop", "documents"])
def test_mask_that_lists_its_keys_does_not_grow(name):
    with refuses(f"Mask.{name}", "2 keys"):
        CASES[name][0]().grow(K, 2)


@pytest.mark.parametrize("name", CASES)
def test_selected_rows_are_rows_of_the_mask(name):
    rows = [1, 1, 0, 1, 0]
    chosen = CASES[name][0]().select(torch.tensor(rows), batch_axes=2)
    assert_equal(matrix(chosen, (5, H)), brute_force(name)[rows])


@pytest.mark.cpu  # reading the numbers on a GPU would wait for it
@pytest.mark.parametrize("rows", [[0, 2], [-1]])
def test_rows_that_do_not_exist_are_refused(rows):
    with refuses("rows", "from 0"):
        Mask.lengths(ints([4, 0])).select(torch.tensor(rows))


# --- Attention under a mask ------------------------------------------------------------------------------------------


def array(tensor):
    return tensor.detach().double().cpu().numpy()


def drawn(queries=Q, keys=K, dtype=torch.float64):
    query, key = (0.5 * torch.randn(B, H, n, 4, dtype=dtype) for n in (queries, keys))
    return query, key, torch.randn(B, H, keys, 3, dtype=dtype)


def score_of(name):
    """A score and its formula."""
    if name != "additive":
        return name, oracle.named(name)
    score = Additive(4, 4, 5).double()
    weights = [array(score.query_weight), array(score.key_weight), array(score.weight)]
    return score, lambda q, k: oracle.additive(q, k, *weights)


@pytest.mark.parametrize("score", ["scaled_dot", "gaussian", "additive"])
@pytest.mark.parametrize("name", CASES)
def test_attention_under_a_mask_is_the_formula_over_allowed_keys(name, score):
    query, key, value = drawn()
    score, formula = score_of(score)
    exact = oracle.pool_batch(formula, array(query), array(key), array(value), brute_force(name))
    mask = CASES[name][0]()
    record = regard.inspect(query, key, value, score, mask)
    found = {"weights": record.weights(), "output": record.output, "log_mass": record.log_mass}
    for what, tensor in found.items():
        right = torch.tensor(getattr(exact, what))
        bounds.assert_close(tensor, right, bounds.roundings(right, 200), what)
    right = torch.tensor(exact.output)
    bounds.assert_close(attend(query, key, value, score, mask), right, bounds.roundings(right, 200))
    assert (array(record.weights())[~brute_force(name)] == 0).all()


@pytest.mark.parametrize("score", ["scaled_dot", "gaussian", "additive"])
@pytest.mark.parametrize("name", CASES)
def test_hidden_keys_get_no_gradient(name, score):
    query, key, value = (x.requires_grad_() for x in drawn())
    attend(query, key, value, score_of(score)[0], CASES[name][0]()).square().sum().backward()
    seen = brute_force(name)
    for gradient in (key.grad, value.grad):
        assert gradient.isfinite().all()
        assert (array(gradient)[~seen.any(-2)] == 0).all()
    assert (array(query.grad)[~seen.any(-1)] == 0).all()


PADDING = ["lengths", "lengths per head", "lengths shared", "keys", "keys per head", "from_multihead padding", "and"]


@pytest.mark.parametrize("garbage", [0.0, -7.0, 1e4, 1e30, -3e38], ids=str)
@pytest.mark.parametrize("score", ["scaled_dot", "cosine", "gaussian", "laplacian", "additive"])
@pytest.mark.parametrize("name", PADDING)
def test_finite_content_of_padding_changes_nothing(name, score, garbage):
    query, key, value = drawn(dtype=torch.float32)
    score = score_of(score)[0]
    score = score.float() if isinstance(score, Additive) else score
    mask = CASES[name][0]()
    hidden = torch.tensor(~brute_force(name).any(-2)).unsqueeze(-1)
    expected = attend(query, key, value, score, mask)
    output = attend(query, key.masked_fill(hidden, garbage), value.masked_fill(hidden, garbage), score, mask)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("score", ["scaled_dot", "gaussian", "additive"])
def test_query_without_keys_gets_0(score):
    query, key, value = drawn()
    mask = Mask.lengths(ints([4, 0]))
    record = regard.inspect(query, key, value, score_of(score)[0], mask)
    assert (record.output[1] == 0).all()
    assert (record.weights()[1] == 0).all()
    assert (record.log_mass[1] == -torch.inf).all()
    assert (record.entropy()[1] == 0).all()


# --- Refusals --------------------------------------------------------------------------------------------------------

BARE = torch.ones(Q, Q, dtype=torch.bool)
WORDS = ("Mask.keep(m)", "Mask.drop(m)", "Mask.keys(m)")


def test_bare_boolean_is_refused_by_every_call_that_takes_a_mask():
    x = torch.randn(Q, 12)
    layer, heads = regard.Attention(), regard.MultiHeadAttention(12, 3)
    for call in (
        lambda: attend(x, x, x, mask=BARE),
        lambda: regard.inspect(x, x, x, mask=BARE),
        lambda: regard.why(x, x, x, mask=BARE),
        lambda: layer(x, x, x, BARE),
        lambda: layer.inspect(x, x, x, BARE),
        lambda: layer.remember(x, x, BARE),
        lambda: heads(x, mask=BARE),
        lambda: heads.inspect(x, mask=BARE),
        lambda: heads.remember(x, mask=BARE),
    ):
        with refuses("mask", "bool (5, 5)", *WORDS):
            call()


@pytest.mark.parametrize(
    "bare", [BARE, BARE.float(), BARE.cpu().numpy(), "causal", True], ids=lambda x: type(x).__name__
)
def test_only_a_mask_is_a_mask(bare):
    x = torch.randn(Q, 4)
    with refuses("mask", "Mask"):
        attend(x, x, x, mask=bare)
    with refuses("Mask", "Mask"):
        Mask(bare)


def test_bare_boolean_is_refused_beside_a_mask():
    for call, argument in (
        (lambda: Mask.causal() & BARE, "&"),
        (lambda: Mask.causal() | BARE, "|"),
        (lambda: BARE & Mask.causal(), "&"),
        (lambda: BARE | Mask.causal(), "|"),
    ):
        with refuses(argument, *WORDS):
            call()


def test_truth_of_a_mask_is_refused():
    with refuses("mask", "&", "|", "~"):
        bool(Mask.causal())
    with refuses("mask", "&", "|", "~"):
        Mask.causal() and Mask.causal()


@pytest.mark.parametrize(
    ("build", "argument"),
    [
        (lambda: Mask.lengths(torch.tensor([1.5])), "Mask.lengths"),
        (lambda: Mask.lengths([3, 4]), "Mask.lengths"),
        (lambda: Mask.lengths_per_query(torch.tensor(3)), "Mask.lengths_per_query"),
        (lambda: Mask.keep(torch.ones(Q, K)), "Mask.keep"),
        (lambda: Mask.keep(torch.ones(K) > 0), "Mask.keep"),
        (lambda: Mask.drop(torch.ones(Q, K).long()), "Mask.drop"),
        (lambda: Mask.keys(torch.ones(K)), "Mask.keys"),
        (lambda: Mask.documents(torch.ones(Q), torch.ones(K)), "Mask.documents"),
        (lambda: Mask.causal("left"), "Mask.causal"),
        (lambda: Mask.window(-1, 0), "Mask.window"),
        (lambda: Mask.window(1.5, 0), "Mask.window"),
        (lambda: Mask.window(0, 0, "right"), "Mask.window"),
        (lambda: Mask.from_multihead(), "Mask.from_multihead"),
        (lambda: Mask.from_multihead(torch.ones(6, Q, K) > 0), "heads"),
        (lambda: Mask.from_multihead(torch.zeros(Q, K)), "attn_mask"),
        (lambda: Mask.from_sdpa(torch.zeros(Q, K)), "attn_mask"),
    ],
)
def test_tensor_or_number_that_says_nothing_is_refused(build, argument):
    with refuses(argument):
        build()


@pytest.mark.parametrize(
    ("mask", "argument"),
    [
        (lambda: Mask.keep(torch.ones(4, 4) > 0), "Mask.keep"),
        (lambda: Mask.lengths(torch.tensor([1, 2, 3])), "Mask.lengths"),
        (lambda: Mask.lengths_per_query(torch.ones(B, 4).long()), "Mask.lengths_per_query"),
        (lambda: Mask.keys(torch.ones(B, 5) > 0), "Mask.keys"),
        (lambda: Mask.documents(torch.ones(Q).long(), torch.ones(4).long()), "Mask.documents"),
    ],
)
def test_mask_of_other_sizes_than_the_call_is_refused(mask, argument):
    with refuses(argument):
        attend(*drawn(), mask=mask())
    with refuses(argument):
        mask().to_sdpa(*SIZES)
