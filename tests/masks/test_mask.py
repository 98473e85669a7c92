"""Every constructor and operator of `Mask` against plain loops, beams, growing caches, tracing and the cache."""

import copy
import dataclasses
import itertools
import pickle

import pytest
import torch
from tests.modes import Relabelling
from tests.refuses import refuses
from torch._subclasses import FakeTensorMode

import regard
from regard.masks import Mask, bound
from regard.masks.bound import MAX_CACHED

CPU = torch.device("cpu")
B, H, Q, K = 2, 3, 5, 7
OLDER_TORCH_WARNS = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")


def dense(mask, batch=(B, H), queries=Q, keys=K, **more):
    node = mask.place(batch=batch, queries=queries, keys=keys, device=CPU, **more)
    return node.tile(slice(0, queries), slice(0, keys), CPU).expand(*batch, queries, keys)


def loops(rule, queries=Q, keys=K):
    """The matrix (B, H, queries, keys) of a rule (b, h, i, j) -> bool."""
    cells = itertools.product(range(B), range(H), range(queries), range(keys))
    return torch.tensor([bool(rule(*cell)) for cell in cells]).reshape(B, H, queries, keys)


def ints(*sizes, high=K + 2):
    return torch.randint(0, high, sizes, generator=torch.Generator().manual_seed(sum(sizes)))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_lengths(dtype):
    t = ints(B).to(dtype)
    assert torch.equal(dense(Mask.lengths(t)), loops(lambda b, h, i, j: j < t[b]))


@pytest.mark.parametrize("sizes", [(), (1,), (B, 1), (1, H), (B, H)])
def test_lengths_with_shared_and_missing_axes(sizes):
    t = ints(*sizes)
    full = t.reshape(sizes + (1,) * (2 - len(sizes))).expand(B, H)
    assert torch.equal(dense(Mask.lengths(t)), loops(lambda b, h, i, j: j < full[b, h]))


@pytest.mark.parametrize("sizes", [(Q,), (B, Q), (1, Q), (B, H, Q)])
def test_lengths_per_query(sizes):
    t = ints(*sizes)
    full = (t[:, None] if t.ndim == 2 else t).expand(B, H, Q)
    assert torch.equal(dense(Mask.lengths_per_query(t)), loops(lambda b, h, i, j: j < full[b, h, i]))


@pytest.mark.parametrize("sizes", [(Q, K), (1, K), (Q, 1), (H, Q, K), (B, 1, Q, K), (B, H, 1, K), (1, 1, 1, 1)])
def test_keep_and_drop_align_from_the_right(sizes):
    m = ints(*sizes, high=2).bool()
    full = m.expand(B, H, Q, K)
    assert torch.equal(dense(Mask.keep(m)), full)
    assert torch.equal(dense(Mask.drop(m)), ~full)
    assert torch.equal(dense(~Mask.drop(m)), full)


@pytest.mark.parametrize("sizes", [(K,), (B, K), (1, K), (B, H, K), (B, 1, K)])
def test_keys(sizes):
    m = ints(*sizes, high=2).bool()
    full = m.reshape(sizes[:-1] + (1,) * (3 - len(sizes)) + (K,)).expand(B, H, K)
    assert torch.equal(dense(Mask.keys(m)), loops(lambda b, h, i, j: full[b, h, j]))


@pytest.mark.parametrize(("lead_q", "lead_k"), [((), ()), ((B,), (B,)), ((), (B, H)), ((B, 1), (1,))])
def test_documents(lead_q, lead_k):
    q, k = ints(*lead_q, Q, high=3), ints(*lead_k, K, high=3)
    full_q = q.reshape(lead_q + (1,) * (2 - len(lead_q)) + (Q,)).expand(B, H, Q)
    full_k = k.reshape(lead_k + (1,) * (2 - len(lead_k)) + (K,)).expand(B, H, K)
    assert torch.equal(dense(Mask.documents(q, k)), loops(lambda b, h, i, j: full_q[b, h, i] == full_k[b, h, j]))


@pytest.mark.parametrize(("queries", "keys"), [(Q, K), (K, Q), (1, K)])
@pytest.mark.parametrize(("left", "right"), [(None, 0), (2, 0), (0, 0), (1, 2), (3, None), (None, None)])
def test_bands_stand_where_they_are_aligned(queries, keys, left, right):
    def rule(offset):
        low, high = (99 if left is None else left), (99 if right is None else right)
        return lambda b, h, i, j: i + offset - low <= j <= i + offset + high

    for align, offset in (("top_left", 0), ("lower_right", keys - queries)):
        assert torch.equal(dense(Mask.window(left, right, align), queries=queries, keys=keys),
                           loops(rule(offset), queries, keys))  # fmt: skip
    known = dense(Mask.window(left, right), queries=queries, keys=keys, first_query=2)
    assert torch.equal(known, loops(rule(2), queries, keys))
    # A known position outranks align.
    assert torch.equal(dense(Mask.window(left, right, "top_left"), queries=queries, keys=keys, first_query=2), known)


def test_causal_is_the_plain_band_on_equal_sizes():
    node = Mask.causal().place(batch=(B, H), queries=K, keys=K, device=CPU)
    assert node.is_causal
    assert torch.equal(dense(Mask.causal(), queries=K), loops(lambda b, h, i, j: j <= i, K, K))


def test_steps_of_a_memory_are_rows_of_the_full_pass():
    full = dense(Mask.causal() & Mask.window(3, None), queries=K)
    for step in range(K):
        row = dense(Mask.causal() & Mask.window(3, None), queries=1, keys=step + 1, first_query=step)
        assert torch.equal(row, full[..., step : step + 1, : step + 1])


def test_words_join_and_de_morgan_holds():
    a, b = Mask.lengths(ints(B)), Mask.keep(ints(H, Q, K, high=2).bool())
    assert torch.equal(dense(a & b), dense(a) & dense(b))
    assert torch.equal(dense(a | b), dense(a) | dense(b))
    assert torch.equal(dense(~(a & b)), dense(~a | ~b))
    assert torch.equal(dense(~(a | b)), dense(~a & ~b))
    assert torch.equal(dense(~~a), dense(a))
    assert torch.equal(dense(a.negated()), dense(~a))


def test_every_tensor_has_two_axes_more_than_the_batch():
    words = [Mask.lengths(ints(B)), Mask.lengths_per_query(ints(B, Q)), Mask.keep(ints(Q, K).bool()),
             Mask.keys(ints(B, K).bool()), Mask.documents(ints(Q), ints(B, K))]  # fmt: skip
    for word in words:
        for tensor in word.place(batch=(B, H), queries=Q, keys=K, device=CPU).tensors():
            assert tensor.ndim == 4


def test_a_mask_is_immutable_and_survives_copying():
    mask = Mask.causal() & ~Mask.lengths(torch.tensor([3, 5]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        mask._expression = None
    for again in (pickle.loads(pickle.dumps(mask)), copy.deepcopy(mask)):
        assert torch.equal(dense(again, queries=K), dense(mask, queries=K))
    assert repr(mask) == "(Mask.causal() & ~Mask.lengths(int64 (2,) on cpu))"
    assert repr(Mask.window(2, None, "top_left")) == 'Mask.window(2, None, align="top_left")'
    assert repr(Mask.keys(torch.ones(3) > 0) | Mask.drop(torch.ones(2, 3) > 0)) == (
        "(Mask.keys(bool (3,) on cpu) | Mask.drop(bool (2, 3) on cpu))"
    )
    assert repr(Mask.documents(ints(2), ints(3))) == "Mask.documents(int64 (2,) on cpu, int64 (3,) on cpu)"


def test_select_follows_the_first_batch_axis():
    rows = torch.tensor([1, 1, 0, 1])
    mask = (
        Mask.lengths(ints(B)) | Mask.lengths_per_query(ints(B, Q)) & ~Mask.keys(ints(B, H, K, high=2).bool())
        | Mask.documents(ints(1, Q, high=3), ints(B, K, high=3)) & Mask.causal("top_left")
        | Mask.keep(ints(B, 1, Q, K, high=2).bool()) & Mask.drop(ints(H, Q, K, high=2).bool())
    )  # fmt: skip
    chosen = dense(mask.select(rows, batch_axes=2), batch=(4, H))
    assert torch.equal(chosen, dense(mask)[rows])


@pytest.mark.parametrize("rows", [[0, 2], [-1, 0]])
def test_select_refuses_rows_that_are_not_there(rows):
    with refuses("rows", "from 0"):
        Mask.lengths(ints(B)).select(torch.tensor(rows))


@pytest.mark.parametrize("mask", [Mask.causal(), Mask.lengths(ints(B)), Mask.keys(ints(B, K, high=2).bool())], ids=str)
@pytest.mark.parametrize("number", [-1, 2.0, True])
def test_numbers_of_keys_are_whole(mask, number):
    for argument, attempt in (
        ("old_keys", lambda: mask.grow(number, 1)),
        ("new_keys", lambda: mask.grow(K, number)),
        ("queries", lambda: mask.draw(queries=number)),
        ("keys", lambda: mask.draw(Q, keys=number)),
        ("keys", lambda: mask.draw(keys=number)),
        ("queries", lambda: mask.to_sdpa((B,), number, K)),
    ):
        with refuses(argument, "a whole number, at least 0"):
            attempt()


def test_select_leaves_alone_what_is_shared():
    rows = torch.tensor([0, 0, 0])
    shared = Mask.lengths(torch.tensor(4)) & Mask.keys(torch.ones(1, K) > 0) & Mask.keep(torch.ones(Q, K) > 0)
    assert torch.equal(dense(shared.select(rows), batch=(3, H)), dense(shared, batch=(3, H)))


def test_grow_lets_everyone_see_what_came_later():
    real = ints(B, K, high=2).bool()
    sees_new = {
        "lengths": Mask.lengths(ints(B)),
        "keys": Mask.keys(real),
        "not keys": ~Mask.keys(real),
        "not lengths": ~Mask.lengths(ints(B)),
        "both": Mask.keys(real) & Mask.lengths(ints(B)),
        "neither": ~(Mask.keys(real) | Mask.lengths(ints(B))),
    }
    for name, mask in sees_new.items():
        grown = dense(mask.grow(K, 3), keys=K + 3)
        assert torch.equal(grown[..., :K], dense(mask)), name
        assert bool(grown[..., K:].all()), name
    twice = Mask.lengths(ints(B)).grow(K, 1).grow(K + 1, 2)
    assert torch.equal(dense(twice, keys=K + 3), dense(Mask.lengths(ints(B)).grow(K, 3), keys=K + 3))
    causal = (Mask.causal() & Mask.window(2, None)).grow(K, 3)
    assert torch.equal(dense(causal, queries=1, keys=K + 3, first_query=K),
                       dense(Mask.window(2, 0), queries=1, keys=K + 3, first_query=K))  # fmt: skip


def test_to_moves_every_tensor():
    mask = (Mask.lengths(ints(B)) & ~Mask.keys(ints(B, K) > 1) | Mask.keep(ints(Q, K) > 1)) & Mask.causal("top_left")
    mask = mask & Mask.documents(ints(Q), ints(K))
    node = mask.to("meta").place(batch=(B, H), queries=Q, keys=K, device=torch.device("meta"))
    assert [tensor.device.type for tensor in node.tensors()] == ["meta"] * 5
    with refuses("Mask.lengths", "(2,)"):
        mask.place(batch=(B, H), queries=Q, keys=K, device=torch.device("meta"))


@pytest.mark.parametrize("per_query", [False, True])
def test_a_mask_keeps_the_lengths_it_was_made_of(per_query):
    lengths = torch.tensor([[1] * Q, [4] * Q] if per_query else [1, 4])
    mask = Mask.lengths_per_query(lengths) if per_query else Mask.lengths(lengths)
    before = dense(mask, batch=(B, H)).clone()
    lengths[0] = 2
    assert torch.equal(dense(mask, batch=(B, H)), before)


def test_a_mask_keeps_the_keys_it_was_made_of():
    real = ints(B, K, high=2).bool()
    mask = Mask.keys(real)
    before = dense(mask, batch=(B, H)).clone()
    real.logical_not_()
    assert torch.equal(dense(mask, batch=(B, H)), before)


def place(mask, keys=K, **more):
    return mask.place(**({"batch": (B, H), "queries": K, "keys": keys, "device": CPU} | more))


CACHED = {
    "lengths": lambda: Mask.lengths(torch.tensor([1, 4])),
    "keys": lambda: Mask.keys(ints(B, K, high=2).bool()),
    "causal lengths": lambda: Mask.causal("lower_right") & ~Mask.lengths(torch.tensor([1, 4])),
}


@pytest.mark.parametrize("name", CACHED)
def test_a_mask_is_bound_once_for_equal_sizes(name):
    mask = CACHED[name]()
    first = place(mask)
    assert place(mask) is first
    for other in ({"queries": K + 1}, {"batch": (B, 1)}, {"first_query": 2}):
        assert place(mask, **other) is not first
    assert place(mask) is first


def test_at_most_max_cached_bound_masks_are_kept():
    mask = Mask.lengths(torch.tensor([1, 4]))
    for keys in range(5, 5 + 3 * MAX_CACHED):
        assert isinstance(place(mask, keys), bound.Lengths)
        assert 1 <= len(mask._bound) <= MAX_CACHED


@pytest.mark.parametrize("name", CACHED)
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda mask: pickle.loads(pickle.dumps(mask))])
def test_a_copied_mask_starts_with_an_empty_cache(name, again):
    mask = CACHED[name]()
    before = place(mask)
    copied = again(mask)
    assert mask._bound
    assert not copied._bound
    assert place(copied) is not before
    assert torch.equal(dense(copied), dense(mask))


@pytest.mark.parametrize("name", CACHED)
def test_fake_tensors_leave_nothing_in_the_cache(name):
    mask, before = CACHED[name](), dense(CACHED[name]())
    with FakeTensorMode(allow_non_fake_inputs=True):
        place(mask)
    assert not mask._bound
    assert torch.equal(dense(mask), before)
    assert all(type(tensor) is torch.Tensor for tensor in place(mask).tensors())


@pytest.mark.parametrize("name", CACHED)
def test_functionalize_leaves_nothing_in_the_cache(name):
    mask, before = CACHED[name](), dense(CACHED[name]())
    tokens = torch.randn(B, H, K, 4)
    found = torch.func.functionalize(lambda x: regard.attend(x, x, x, mask=mask))(tokens)
    assert not mask._bound
    assert torch.equal(dense(mask), before)
    torch.testing.assert_close(regard.attend(tokens, tokens, tokens, mask=mask), found)


@pytest.mark.parametrize("name", CACHED)
def test_a_mask_first_used_in_inference_mode_serves_training(name):
    mask, tokens = CACHED[name](), torch.randn(B, H, K, 4, requires_grad=True)
    with torch.inference_mode():
        before = regard.attend(tokens, tokens, tokens, mask=mask)
        bound_mask = place(mask)
    after = regard.attend(tokens, tokens, tokens, mask=mask)
    assert place(mask) is bound_mask
    after.sum().backward()
    torch.testing.assert_close(after, before.clone())
    assert bool(tokens.grad.isfinite().all())


@pytest.mark.parametrize("constructor", [Mask.keep, Mask.drop])
def test_a_matrix_that_changes_is_read_anew(constructor):
    matrix = ints(B, 1, 1, K, high=2).bool()  # the same for all queries, as padding is
    mask, tokens = constructor(matrix), torch.randn(B, H, K, 4)
    before = regard.attend(tokens, tokens, tokens, mask=mask)
    matrix.logical_not_()
    found = regard.attend(tokens, tokens, tokens, mask=mask)
    assert not torch.allclose(found, before)
    assert torch.equal(found, regard.attend(tokens, tokens, tokens, mask=constructor(matrix)))


def test_each_stream_has_its_own_bound_mask(monkeypatch):
    mask, stream = CACHED["lengths"](), [0]
    monkeypatch.setattr(bound, "DEVICE_WITH_STREAMS", "cpu")
    monkeypatch.setattr(bound, "current_stream", lambda device: stream[0])
    first = place(mask)
    stream[0] = 7
    second = place(mask)
    assert second is not first
    assert place(mask) is second
    stream[0] = 0
    assert place(mask) is first


def test_a_captured_graph_neither_reads_nor_fills_the_cache(monkeypatch):
    used, unused, stream = CACHED["lengths"](), CACHED["lengths"](), [0]
    monkeypatch.setattr(bound, "DEVICE_WITH_STREAMS", "cpu")
    monkeypatch.setattr(bound, "current_stream", lambda device: stream[0])
    first = place(used)
    stream[0] = None
    assert place(used) is not first
    assert place(unused) is not place(unused)
    assert not unused._bound


WORDS = {
    "lengths": lambda: Mask.lengths(torch.tensor([1, 4])),
    "keys": lambda: Mask.keys(torch.ones(B, K, dtype=torch.bool)),
}


@pytest.mark.parametrize("word", WORDS)
def test_a_mask_that_was_used_here_is_refused_elsewhere(word):
    mask = WORDS[word]()
    dense(mask)
    with refuses("Mask.keys" if word == "keys" else "Mask.lengths", "the device of the query, meta"):
        mask.place(batch=(B, H), queries=Q, keys=K, device=torch.device("meta"))


@pytest.mark.parametrize("word", WORDS)
def test_a_mask_made_in_inference_may_meet_a_backward_pass_later(word):
    with torch.inference_mode():
        mask = WORDS[word]()
    tokens = torch.randn(B, K, 4, requires_grad=True)
    for backend in ("reference", "blocked"):
        regard.attend(tokens, tokens, tokens, "gaussian", mask, backend=backend).sum().backward()
    assert bool(tokens.grad.isfinite().all())


def test_real_keys_and_padding_masks_of_others_are_copies():
    real = torch.ones(B, K, dtype=torch.bool)
    mask = Mask.keys(real)
    mask.real_keys((B,), K).fill_(False)
    theirs = Mask.from_multihead(key_padding_mask=~real)
    before = dense(theirs, batch=(B,)).clone()
    real.fill_(False)
    for padding in (mask, theirs):
        assert torch.equal(dense(padding, batch=(B,)), before)


def test_lengths_of_another_batch_are_refused():
    with refuses("Mask.lengths", "(3,)", "(2, 3)"):
        dense(Mask.lengths(torch.tensor([1, 2, 3], dtype=torch.int32)), batch=(B, H))


def test_a_mask_first_placed_in_inference_may_meet_a_backward_pass_later():
    lengths = torch.tensor([2, 19])
    with torch.inference_mode(), torch.device("meta"):
        dense(Mask.lengths(lengths), batch=(B,), queries=29, keys=29)
    kept = dense(Mask.lengths(lengths), batch=(B,), queries=29, keys=29)
    assert not kept.is_inference()
    assert torch.equal(kept[:, 0], torch.arange(29) < lengths[:, None])
    tokens = torch.randn(B, 29, 5, requires_grad=True)
    regard.attend(tokens, tokens, tokens, mask=Mask.lengths(lengths)).sum().backward()
    assert bool(tokens.grad.isfinite().all())


def test_what_is_kept_is_not_handed_out():
    lengths = torch.tensor([3, 5])
    before = dense(Mask.lengths(lengths), batch=(B,)).clone()
    Mask.lengths(lengths).to_sdpa((B,), 1, K)[0] = False
    assert torch.equal(dense(Mask.lengths(lengths), batch=(B,)), before)


@pytest.mark.parametrize("name", CACHED)
def test_a_cached_mask_has_plain_tensors_even_if_a_mode_was_active(name):
    mask = CACHED[name]()
    with Relabelling():
        place(mask).padding(K, CPU)
    assert mask._bound
    assert all(type(tensor) is torch.Tensor for tensor in place(mask).tensors())
    padding = place(mask).padding(K, CPU)
    assert padding is None or type(padding.real) is torch.Tensor


@pytest.mark.parametrize("backend", ["reference", "blocked", "torch"])
def test_a_cached_mask_gives_the_results_of_a_new_one(backend):
    inputs = [torch.randn(B, K, 4, generator=torch.Generator().manual_seed(5)).requires_grad_() for _ in range(3)]
    lengths = torch.tensor([0, 4])

    def masks():
        padding = Mask.lengths(lengths)
        return [padding, ~padding, padding & Mask.causal(), padding | Mask.window(1, 1)]

    def outcome(mask):
        output = regard.attend(*inputs, mask=mask, backend=backend)
        return [output, *torch.autograd.grad(output.sum(), inputs)]

    for mask, new in zip(masks(), masks(), strict=True):
        outcome(mask)
        assert mask._bound
        for one, other in zip(outcome(mask), outcome(new), strict=True):
            assert torch.equal(one, other)


@OLDER_TORCH_WARNS
def test_a_compiled_caller_builds_places_and_asks():
    def caller(scores, t, real):
        *batch, queries, keys = scores.shape
        mask = Mask.causal("lower_right") & Mask.lengths(t).negated()
        mask |= Mask.window(2, None, "top_left") & Mask.keys(real)
        node = mask.place(batch=tuple(batch), queries=queries, keys=keys, device=scores.device)
        tile = node.tile(slice(0, queries), slice(0, keys), scores.device)
        text, tensors, numbers = bound.flatten(node)
        return tile, text, tensors, numbers, node.padding(keys, scores.device)

    torch._dynamo.reset()
    compiled = torch.compile(caller, fullgraph=True, backend="aot_eager")
    # The first call compiles for its sizes, the second one, of other sizes, for any.
    for queries, keys in ((5, 7), (3, 11)):
        inputs = (torch.zeros(B, H, queries, keys), torch.tensor([1, 4]), ints(B, keys, high=2).bool())
        (tile, text, tensors, numbers, padding), expected = compiled(*inputs), caller(*inputs)
        assert torch.equal(tile, expected[0])
        assert numbers == expected[3], "the numbers must follow the sizes of this call"
        again = bound.unflatten(text, tensors, numbers).tile(slice(0, queries), slice(0, keys), CPU)
        assert torch.equal(again, expected[0])
        assert torch.equal(padding.real, expected[4].real)


@OLDER_TORCH_WARNS
def test_a_mask_may_be_an_argument_of_a_compiled_function():
    def caller(scores, mask):
        return scores.masked_fill(~dense(mask, batch=(B, H)), -1.0)

    torch._dynamo.reset()
    compiled = torch.compile(caller, fullgraph=True, backend="aot_eager")
    for t in (torch.tensor([3, 5]), torch.tensor([1, 6])):
        mask = ~Mask.lengths(t) & Mask.causal("lower_right")
        assert torch.equal(compiled(torch.zeros(B, H, Q, K), mask), caller(torch.zeros(B, H, Q, K), mask))


def test_vmap_over_lengths_and_matrices():
    t, m = ints(B, H), ints(B, Q, K, high=2).bool()

    def one(t, m):
        return dense(Mask.lengths(t) & ~Mask.keep(m) & Mask.causal("lower_right"), batch=(H,))

    assert torch.equal(torch.vmap(one)(t, m), torch.stack([one(t[b], m[b]) for b in range(B)]))
    columns = torch.vmap(one, in_dims=(1, 2))(t.T.contiguous(), m.permute(1, 2, 0).contiguous())
    assert torch.equal(columns, torch.vmap(one)(t, m))


def test_real_keys_are_told_where_a_mask_says_no_more():
    real = torch.tensor([[True, True, False], [True, False, False]])
    assert torch.equal(Mask.lengths(torch.tensor([2, 1])).real_keys((2,), 3), real)
    assert torch.equal(Mask.keys(real).real_keys((2,), 3), real)
    for mask in (Mask.lengths_per_query(torch.ones(2, 3, dtype=torch.int64)), Mask.causal(), ~Mask.keys(real)):
        assert mask.real_keys((2,), 3) is None
    assert Mask.lengths(torch.tensor(2)).real_keys((2,), 3) is None  # shared by all rows
    assert Mask.keys(real).real_keys((2,), 4) is None
