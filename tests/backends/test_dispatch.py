"""auto picks a backend by size, score and device; a backend that is named runs the call or refuses with its reason."""

import pytest
import torch
from tests import bounds
from tests.refuses import refuses
from torch._subclasses.fake_tensor import FakeTensorMode

import regard
from regard import Mask
from regard.attention.prepare import Options, prepare
from regard.backends import dispatch
from regard.backends.base import Plan, Problem, Refusal
from regard.backends.blocked.additive import AdditiveScores
from regard.backends.dispatch import (
    BACKENDS,
    MAX_FEW_QUERIES,
    MAX_FEW_QUERIES_ADDITIVE,
    MAX_FEW_QUERIES_ELEMENTS,
    MAX_SMALL_ADDITIVE_ELEMENTS,
    MAX_SMALL_ELEMENTS,
    MIN_TRITON_ELEMENTS,
)
from regard.masks.bound import Dense, Lengths
from regard.scores.base import CallablePair
from regard.scores.dot import DotPair


def tokens(count, dim=4, batch=2):
    return torch.randn(batch, count, dim)


def chosen(*arguments, **settings):
    return regard.why(*arguments, **settings).backend


def test_dot_products_run_in_torch():
    assert chosen(tokens(5), tokens(7), tokens(7)) == "torch"


@pytest.mark.parametrize("score", ["laplacian", regard.scores.Additive(4, 4, 8), lambda q, k: q @ k.mT])
def test_small_problems_run_in_reference_and_large_ones_in_blocked(score):
    assert chosen(tokens(5), tokens(7), tokens(7), score) == "reference"
    assert chosen(tokens(1024), tokens(1024), tokens(1024), score) == "blocked"


def test_reference_is_chosen_up_to_the_limit_of_small_problems():
    side = int((MAX_SMALL_ELEMENTS["cpu"] // 2) ** 0.5)
    query, key = tokens(side, 1), tokens(MAX_SMALL_ELEMENTS["cpu"] // 2 // side, 1)
    assert chosen(query, key, key, "laplacian") == "reference"
    query, key = tokens(side + 1, 1), tokens(MAX_SMALL_ELEMENTS["cpu"] // 2 // side + 1, 1)
    assert chosen(query, key, key, "laplacian") == "blocked"


@pytest.mark.parametrize(("queries", "keys", "batch"), [(0, 3, 2), (3, 0, 2), (3, 3, 0)])
def test_empty_inputs_run_in_reference(queries, keys, batch):
    assert chosen(tokens(queries, batch=batch), tokens(keys, batch=batch), tokens(keys, batch=batch)) == "reference"


def test_unknown_backend_is_refused_with_the_known_names():
    with refuses("backend", "'cuda'", '"auto" or one of blocked, reference'):
        chosen(tokens(5), tokens(7), tokens(7), backend="cuda")


def test_named_backend_that_refuses_raises_with_its_reason():
    with refuses("backend", "torch refuses: it computes dot"):
        regard.attend(tokens(5), tokens(7), tokens(7), "laplacian", backend="torch")


def test_why_has_a_reason_for_every_backend_that_is_not_chosen():
    record = regard.why(tokens(5), tokens(7), tokens(7), "laplacian", backend="blocked")
    assert set(record.refusals) == set(BACKENDS) - {"blocked"}
    assert record.refusals["torch"] == "it computes dot products and Gaussian scores only"
    assert all(record.refusals.values())


def test_blocked_computes_tanh_if_the_tolerance_is_tighter_than_the_identity():
    query, key, value = torch.randn(2, 800, 4), torch.randn(2, 800, 4), torch.randn(2, 800, 3)
    score = regard.scores.Additive(4, 4, 8)
    loose = regard.why(query, key, value, score, tolerance=2e-6)
    tight = regard.why(query, key, value, score, tolerance=5e-7)
    assert loose.backend == tight.backend == "blocked"
    assert loose.bound.startswith("at most 1.9e-06 for each tanh")
    assert tight.bound.startswith("at most 1.2e-07 for each tanh")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdditiveScores, "_tanh_scores", lambda *_: pytest.fail("the identity is exact enough"))
        regard.attend(query, key, value, score, tolerance=2e-6)
    exact = regard.attend(query, key, value, score, backend="reference")
    torch.testing.assert_close(regard.attend(query, key, value, score, tolerance=5e-7), exact)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdditiveScores, "_tanh_scores", lambda *_: pytest.fail("tanh was taken"))
        with pytest.raises(pytest.fail.Exception, match="tanh was taken"):
            regard.attend(query, key, value, score, tolerance=5e-7)


def test_few_queries_run_in_reference_up_to_a_limit_of_elements():
    keys = 4 * MAX_SMALL_ELEMENTS["cpu"] // MAX_FEW_QUERIES
    assert chosen(tokens(MAX_FEW_QUERIES, 1), tokens(keys, 1), tokens(keys, 1), "laplacian") == "reference"
    assert chosen(tokens(MAX_FEW_QUERIES + 1, 1), tokens(keys, 1), tokens(keys, 1), "laplacian") == "blocked"
    beyond = MAX_FEW_QUERIES_ELEMENTS + 1
    one, many = torch.zeros(1, 1, 1), torch.zeros(1, 1, 1).expand(1, beyond, 1)
    assert chosen(one, many, many, "laplacian") == "blocked"


def test_additive_score_on_a_cpu_has_a_lower_limit_of_few_queries():
    keys, score = 2 * MAX_SMALL_ADDITIVE_ELEMENTS // 8, regard.scores.Additive(4, 4, 8)
    assert chosen(tokens(MAX_FEW_QUERIES_ADDITIVE, 4, 1), tokens(keys, 4, 1), tokens(keys, 4, 1), score) == "reference"
    assert (
        chosen(tokens(MAX_FEW_QUERIES_ADDITIVE + 1, 4, 1), tokens(keys, 4, 1), tokens(keys, 4, 1), score) == "blocked"
    )


def on_gpu(queries, keys, kind, dim=64):
    """A problem whose values are on a GPU, without numbers."""
    query, key = torch.zeros(1, queries, dim), torch.zeros(1, keys, dim)
    score = regard.scores.Additive.of_projected(dim) if kind == "additive" else "laplacian"
    problem = prepare(query, key, key, score, Options())
    with FakeTensorMode():
        return problem._replace(value=torch.empty(key.shape, device="cuda"))


@pytest.mark.parametrize("kind", MIN_TRITON_ELEMENTS)
def test_order_begins_with_triton_on_a_gpu_and_in_training_from_the_size_of_each_kind(kind, monkeypatch):
    keys = MIN_TRITON_ELEMENTS[kind] // (64 * 512)
    large, small = on_gpu(512, keys, kind), on_gpu(511, keys, kind)
    for problem in (large, small):
        with torch.no_grad():
            assert [dispatch.order(problem, need)[0] for need in ("output", "log_mass")] == ["triton"] * 2
        assert dispatch.order(problem, "weights") == ("reference",)
    training = [problem._replace(value=problem.value.requires_grad_()) for problem in (large, small)]
    assert ["triton" in dispatch.order(problem, "output") for problem in training] == [True, False]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with torch.no_grad():
        assert ["triton" in dispatch.order(problem, "output") for problem in (large, small)] == [True, False]


def test_order_never_has_triton_on_a_cpu():
    for score in ("laplacian", regard.scores.Additive.of_projected(64)):
        large = torch.zeros(1, 1, 64).expand(1, 2**12, 64)
        problem = prepare(large, large, large, score, Options())
        assert problem.elements > MIN_TRITON_ELEMENTS[problem.pair.kind]
        assert dispatch.order(problem, "output") == ("blocked", "reference")


def test_order_always_ends_with_a_backend_that_accepts():
    for count in (5, 1024):
        for score in ("dot", "laplacian", lambda q, k: q @ k.mT):
            for need in ("output", "log_mass", "weights"):
                problem = prepare(tokens(count), tokens(count), tokens(count), score, Options())
                assert dispatch.order(problem, need)[-1] == "reference"


def test_order_has_torch_for_outputs_of_dot_products_only():
    for count in (5, 1024):
        dots = prepare(tokens(count), tokens(count), tokens(count), "dot", Options())
        distances = prepare(tokens(count), tokens(count), tokens(count), "laplacian", Options())
        assert dispatch.order(dots, "output")[0] == "torch"
        assert "torch" not in dispatch.order(dots, "log_mass")
        assert "torch" not in dispatch.order(distances, "output")


@pytest.mark.parametrize("count", [5, 1024])
def test_no_size_decides_while_a_program_is_exported(count, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(dispatch, "is_exporting", lambda: True)
    x = tokens(count)
    assert dispatch.order(prepare(x, x, x, "laplacian", Options()), "output") == ("blocked", "reference")
    assert dispatch.order(prepare(x, x, x, "dot", Options()), "output") == ("torch", "blocked", "reference")
    assert dispatch.order(prepare(x, x, x, torch.cdist, Options()), "output") == ("reference",)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="auto takes triton on a GPU")
def test_large_additive_scores_run_in_triton_on_a_gpu():
    score = regard.scores.Additive.of_projected(64).to("cuda")
    small, large = (torch.randn(2, count, 64, device="cuda") for count in (64, 1024))
    assert chosen(small, small, small, score) == "reference"
    assert chosen(large, large, large, score) == "triton"
    assert chosen(large, large, large, score, dropout=0.5) == "triton"
    assert chosen(large.double(), large.double(), large.double(), score.double()) != "triton"


@pytest.mark.parametrize("score", ["laplacian", "gaussian", "squared_distance"])
def test_compiled_training_over_distances_on_a_gpu_avoids_plain_operations(score, monkeypatch):
    """Inductor computes wrong gradients of them there; see `dispatch.order`."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with FakeTensorMode():
        heads = torch.empty(2, 8, 600, 2, device="cuda")
        assert chosen(heads, heads, heads, score) in ("triton", "blocked")
        with torch.no_grad():
            assert chosen(heads, heads, heads, score) == "reference"
        assert chosen(heads.cpu()[..., :7, :], heads.cpu()[..., :7, :], heads.cpu()[..., :7, :], score) == "reference"


# --- What a call needs -------------------------------------------------------------------------------------------

SCORES = {
    "dot": lambda: "scaled_dot",
    "distance": lambda: "laplacian",
    "additive": lambda: regard.scores.Additive(4, 4, 8),
    "callable": lambda: lambda q, k: q @ k.mT,
}
ONLY_DOT = "it computes dot products and Gaussian scores only"
ONLY_FUSED = "it supports distance scores and additive scores only"
NO_WEIGHTS = "it does not return weights"
# The reason of each backend that refuses, by kind of score and need.
REFUSALS = {
    ("dot", "output"): {"triton": ONLY_FUSED},
    ("dot", "log_mass"): {"triton": ONLY_FUSED, "torch": "it does not return log_mass"},
    ("dot", "weights"): {"triton": ONLY_FUSED, "torch": "it does not return log_mass", "blocked": NO_WEIGHTS},
    ("distance", "output"): {"torch": ONLY_DOT},
    ("distance", "log_mass"): {"torch": ONLY_DOT},
    ("distance", "weights"): {"torch": ONLY_DOT, "triton": NO_WEIGHTS, "blocked": NO_WEIGHTS},
    ("additive", "output"): {"torch": ONLY_DOT},
    ("additive", "log_mass"): {"torch": ONLY_DOT},
    ("additive", "weights"): {"torch": ONLY_DOT, "triton": NO_WEIGHTS, "blocked": NO_WEIGHTS},
    ("callable", "output"): {"torch": ONLY_DOT, "triton": ONLY_FUSED},
    ("callable", "log_mass"): {"torch": ONLY_DOT, "triton": ONLY_FUSED},
    ("callable", "weights"): {"torch": ONLY_DOT, "triton": ONLY_FUSED, "blocked": NO_WEIGHTS},
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kind", "need"), REFUSALS)
def test_backend_returns_what_is_needed_or_refuses_with_a_reason(kind, need, backend):
    """What is returned equals the reference."""
    problem = prepare(tokens(5), tokens(7), tokens(7), SCORES[kind](), Options())
    found = BACKENDS[backend].plan(problem, need)
    if reason := REFUSALS[kind, need].get(backend):
        assert found == Refusal(backend, reason)
        with refuses("backend", reason):
            dispatch.run(problem, backend, need)
        return
    assert isinstance(found, Plan)
    assert found.backend == backend
    assert dispatch.plan(problem, backend, need).backend == backend
    result, right = dispatch.run(problem, backend, need), dispatch.run(problem, "reference", "weights")
    torch.testing.assert_close(result.output, right.output)
    if need != "output":
        torch.testing.assert_close(result.log_mass, right.log_mass)
    if need == "weights":
        torch.testing.assert_close(result.weights, right.weights)


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("count", [5, 1024])
def test_weights_are_returned_by_the_reference_at_any_size(kind, count):
    problem = prepare(tokens(count), tokens(count), tokens(count), SCORES[kind](), Options())
    assert dispatch.plan(problem, need="weights").backend == "reference"


@pytest.mark.parametrize("count", [5, 1024])
def test_explain_gives_the_refusals_for_the_weights(count):
    problem = prepare(tokens(count), tokens(count), tokens(count), "scaled_dot", Options())
    record = dispatch.explain(problem, need="weights")
    assert record.backend == "reference"
    assert record.refusals == REFUSALS["dot", "weights"]
    assert dispatch.explain(problem).backend == "torch"
    assert str(record).splitlines()[0] == "backend: reference"
    assert len(str(record).splitlines()) == 2 + len(record.refusals)


def test_explain_gives_the_limit_up_to_which_auto_takes_the_reference():
    problem = prepare(tokens(1024), tokens(1024), tokens(1024), "laplacian", Options())
    refusal = dispatch.explain(problem).refusals["reference"]
    limit = MAX_SMALL_ELEMENTS["cpu"]
    assert refusal == f'it would materialise {problem.elements} elements; backend="auto" uses it for at most {limit}'


# --- A sink ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("need", ["output", "log_mass", "weights"])
@pytest.mark.parametrize("backend", ["auto", "reference", "blocked"])
def test_sink_is_one_more_key_with_value_0(need, backend):
    """The results are those of an additional key; a row without keys has the mass of the sink alone."""
    if (backend, need) == ("blocked", "weights"):
        pytest.skip("blocked returns no weights")
    query, key, value = (torch.randn(2, 3, n, 4, dtype=torch.float64) for n in (5, 7, 7))
    score = regard.scores.ScaledDot(sink=3).double()
    with torch.no_grad():
        score.sink.copy_(torch.tensor([0.5, -1.0, 2.0]))
    problem = prepare(query, key, value, score, Options(Mask.lengths(torch.tensor([4, 0]))))
    result = dispatch.run(problem, backend, need)
    scores = (query @ key.mT / 2).masked_fill(torch.arange(7) >= torch.tensor([4, 0]).view(2, 1, 1, 1), -torch.inf)
    logits = torch.cat([scores, score.sink.detach().view(3, 1, 1).expand(2, 3, 5, 1)], -1)
    weights = logits.softmax(-1)[..., :-1]
    bounds.assert_same(result.output, weights @ value)
    bounds.assert_same(result.log_mass, logits.logsumexp(-1))
    if need == "weights":
        bounds.assert_same(result.weights, weights)
        assert (result.weights.sum(-1) < 1).all()


@pytest.mark.parametrize("need", ["output", "weights"])
def test_sink_gets_its_gradient(need):
    query, key, value = (torch.randn(2, 3, n, 4, dtype=torch.float64) for n in (5, 7, 7))
    score = regard.scores.ScaledDot(sink=3).double()
    result = dispatch.run(prepare(query, key, value, score, Options()), need=need)
    loss = result.output.sum() if need == "output" else result.weights.square().sum()
    (found,) = torch.autograd.grad(loss, score.sink)
    logits = torch.cat([query @ key.mT / 2, score.sink.view(3, 1, 1).expand(2, 3, 5, 1)], -1)
    weights = logits.softmax(-1)[..., :-1]
    (right,) = torch.autograd.grad((weights @ value).sum() if need == "output" else weights.square().sum(), score.sink)
    bounds.assert_close(found, right, bounds.roundings(right, 64))


def test_sink_makes_the_output_need_the_log_mass():
    query = torch.randn(2, 3, 5, 4)
    problem = prepare(query, query, query, regard.scores.ScaledDot(sink=3), Options())
    assert dispatch.plan(problem).backend == "reference"
    assert dispatch.explain(problem).refusals["torch"] == "it does not return log_mass"


def test_sink_with_other_heads_is_refused():
    query = torch.randn(2, 3, 5, 4)
    with refuses("score", "a sink for (2,) heads"):
        regard.attend(query, query, query, regard.scores.ScaledDot(sink=2))


# --- Padding -----------------------------------------------------------------------------------------------------


def padded(garbage, score="scaled_dot"):
    key, value = torch.randn(2, 7, 3), torch.randn(2, 7, 4)
    key[1, 4:] = value[1, 4:] = garbage
    return prepare(torch.randn(2, 5, 3), key, value, score, Options(Mask.lengths(torch.tensor([7, 4]))))


@pytest.mark.parametrize("garbage", [1e3, 1e30, -1e30])
def test_padding_of_keys_and_values_becomes_0(garbage):
    problem = padded(garbage)
    clean = dispatch.zero_padding(problem)
    for found, given in ((clean.pair.key, problem.pair.key), (clean.value, problem.value)):
        assert (found[1, 4:] == 0).all()
        assert torch.equal(found[0], given[0])
        assert torch.equal(found[1, :4], given[1, :4])
    assert clean.pair.query is problem.pair.query
    assert clean.padding_is_zero
    assert dispatch.zero_padding(clean) is clean


def test_without_padding_the_problem_stays_the_same():
    problem = padded(0.0)
    for mask in (None, Dense(torch.rand(1, 5, 7) < 0.5)):
        whole = problem._replace(mask=mask)
        assert dispatch.zero_padding(whole) is whole


def test_keys_of_a_callable_score_are_not_zeroed():
    problem = padded(1e30, torch.cdist)
    clean = dispatch.zero_padding(problem)
    assert isinstance(clean.pair, CallablePair)
    assert clean.pair.key is problem.pair.key
    assert (clean.value[1, 4:] == 0).all()


@pytest.mark.parametrize("keys", [0, 3])
@pytest.mark.parametrize("allowed", [True, False])
def test_mask_shared_by_the_whole_batch_zeroes_all_or_nothing(allowed, keys):
    tokens = [torch.randn(1, 2, 1, keys, 4) for _ in range(3)]
    problem = Problem(DotPair(*tokens[:2], 0.5), tokens[2], Dense(torch.full((1, keys), allowed)))
    clean = dispatch.zero_padding(problem)
    assert torch.equal(clean.pair.key, tokens[1] if allowed else torch.zeros_like(tokens[1]))


def test_tokens_that_examples_share_are_zeroed_only_where_they_are_padding_in_all():
    key = torch.randn(1, 7, 4)
    clean = dispatch.zero_padding(
        Problem(DotPair(torch.randn(2, 5, 4), key, 0.5), key, Lengths(torch.tensor([5, 2]).view(2, 1, 1)))
    )
    assert torch.equal(clean.pair.key[:, :5], key[:, :5])
    assert (clean.pair.key[:, 5:] == 0).all()


@pytest.mark.parametrize("reads_padding", [True, False])
def test_only_plans_that_read_padding_get_it_zeroed(reads_padding, monkeypatch):
    given = []

    def run(problem):
        given.append(problem)
        return reference_plan.run(dispatch.zero_padding(problem))

    problem = padded(1e30)
    reference_plan = BACKENDS["reference"].plan(problem, "output")
    plan = Plan("reference", run, reads_padding)
    monkeypatch.setattr(type(BACKENDS["reference"]), "plan", lambda self, problem, need: plan)
    dispatch.run(problem, "reference")
    assert (given[0].pair.key[1, 4:] == 0).all() == reads_padding
    assert given[0].padding_is_zero == reads_padding


def test_tolerance_below_the_error_of_the_logistic_function_gets_tanh_itself():
    query, key, value = torch.randn(5, 4), torch.randn(7, 4), torch.randn(7, 3)
    score = regard.scores.Additive(4, 4, 8)
    assert regard.why(query, key, value, score, tolerance=5e-7).backend == "reference"
    tight = regard.why(query, key, value, score, tolerance=2e-7)
    assert (tight.backend, tight.bound[:28]) == ("blocked", "at most 1.2e-07 for each tan")
