"""auto chooses and can say why; a backend asked for by name runs or refuses with its reason."""

from types import SimpleNamespace

import pytest
import torch
from tests.refuses import refuses
from torch._subclasses.fake_tensor import FakeTensorMode

import regard
from regard.backends import choice
from regard.backends.blocked.additive import AdditiveTiles
from regard.backends.choice import BACKENDS, FEW_ADDITIVE, FEW_LIMIT, FEW_QUERIES, FUSED_FROM, SMALL, SMALL_ADDITIVE
from regard.scores.forms import AdditiveForm, DistanceForm


def tokens(count, dim=4, batch=2):
    return torch.randn(batch, count, dim)


def chosen(*arguments, **settings):
    return regard.why(*arguments, **settings).backend


def test_dot_products_go_to_torch():
    assert chosen(tokens(5), tokens(7), tokens(7)) == "torch"


@pytest.mark.parametrize("score", ["gaussian", regard.scores.Additive(4, 4, 8), lambda q, k: q @ k.mT])
def test_small_problems_go_to_the_reference_and_large_ones_to_blocks(score):
    assert chosen(tokens(5), tokens(7), tokens(7), score) == "reference"
    assert chosen(tokens(1024), tokens(1024), tokens(1024), score) == "blocked"


def test_auto_changes_over_at_the_size_it_names():
    side = int((SMALL["cpu"] // 2) ** 0.5)
    query, key = tokens(side, 1), tokens(SMALL["cpu"] // 2 // side, 1)
    assert chosen(query, key, key, "gaussian") == "reference"
    query, key = tokens(side + 1, 1), tokens(SMALL["cpu"] // 2 // side + 1, 1)
    assert chosen(query, key, key, "gaussian") == "blocked"


@pytest.mark.parametrize(("queries", "keys", "batch"), [(0, 3, 2), (3, 0, 2), (3, 3, 0)])
def test_what_is_empty_is_left_to_the_equations(queries, keys, batch):
    assert chosen(tokens(queries, batch=batch), tokens(keys, batch=batch), tokens(keys, batch=batch)) == "reference"


def test_an_unknown_backend_is_refused_with_the_names_there_are():
    with refuses("backend", "'cuda'", '"auto" or one of blocked, reference'):
        chosen(tokens(5), tokens(7), tokens(7), backend="cuda")


def test_a_named_backend_that_cannot_run_gives_its_reason_and_never_falls_back():
    with refuses("backend", "torch refuses: it knows dot"):
        regard.attend(tokens(5), tokens(7), tokens(7), "gaussian", backend="torch")


def test_every_backend_but_the_chosen_one_has_something_against_it():
    record = regard.why(tokens(5), tokens(7), tokens(7), "gaussian", backend="blocked")
    assert set(record.refusals) == set(BACKENDS) - {"blocked"}
    assert record.refusals["torch"] == "it knows dot products only"
    assert all(record.refusals.values())


def test_the_names_auto_knows_are_the_backends_in_the_list():
    assert {choice.TORCH, choice.TRITON, choice.REFERENCE, choice.BLOCKED} == set(BACKENDS.values())


def test_blocks_take_tanh_where_a_tolerance_is_tighter_than_the_identity():
    query, key, value = torch.randn(2, 800, 4), torch.randn(2, 800, 4), torch.randn(2, 800, 3)
    score = regard.scores.Additive(4, 4, 8)
    loose = regard.why(query, key, value, score, tolerance=2e-6)
    tight = regard.why(query, key, value, score, tolerance=5e-7)
    assert loose.backend == tight.backend == "blocked"
    assert loose.bound.startswith("at most 1.9e-06 for each tanh")
    assert tight.bound.startswith("at most 1.2e-07 for each tanh")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdditiveTiles, "_tanh_scores", lambda *_: pytest.fail("the identity is exact enough"))
        regard.attend(query, key, value, score, tolerance=2e-6)
    exact = regard.attend(query, key, value, score, backend="reference")
    torch.testing.assert_close(regard.attend(query, key, value, score, tolerance=5e-7), exact)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdditiveTiles, "_tanh_scores", lambda *_: pytest.fail("tanh was taken"))
        with pytest.raises(pytest.fail.Exception, match="tanh was taken"):
            regard.attend(query, key, value, score, tolerance=5e-7)


def test_a_decoders_few_queries_take_plain_operations_while_those_are_no_larger_than_a_limit():
    keys = 4 * SMALL["cpu"] // FEW_QUERIES
    assert chosen(tokens(FEW_QUERIES, 1), tokens(keys, 1), tokens(keys, 1), "gaussian") == "reference"
    assert chosen(tokens(FEW_QUERIES + 1, 1), tokens(keys, 1), tokens(keys, 1), "gaussian") == "blocked"
    beyond = FEW_LIMIT + 1
    one, many = torch.zeros(1, 1, 1), torch.zeros(1, 1, 1).expand(1, beyond, 1)
    assert chosen(one, many, many, "gaussian") == "blocked"


def test_an_additive_score_on_a_cpu_has_fewer_few_queries():
    keys, score = 2 * SMALL_ADDITIVE // 8, regard.scores.Additive(4, 4, 8)
    assert chosen(tokens(FEW_ADDITIVE, 4, 1), tokens(keys, 4, 1), tokens(keys, 4, 1), score) == "reference"
    assert chosen(tokens(FEW_ADDITIVE + 1, 4, 1), tokens(keys, 4, 1), tokens(keys, 4, 1), score) == "blocked"


@pytest.mark.parametrize("form", [DistanceForm, AdditiveForm])
def test_a_gpu_takes_fused_kernels_from_the_size_that_each_form_has(form, monkeypatch):
    def on(device, work):
        record = form(*(None for _ in form._fields))
        return SimpleNamespace(value=SimpleNamespace(device=torch.device(device)), work=work, form=record)

    asked = []
    monkeypatch.setattr(choice, "TRITON", choice.TRITON._replace(refuse=lambda *given: asked.append(given)))
    least = FUSED_FROM[form]
    assert choice._is_fused(on("cuda", least), log_mass=False)
    assert asked, "it may refuse"
    assert not choice._is_fused(on("cuda", least - 1), log_mass=False)
    assert not choice._is_fused(on("cpu", least), log_mass=False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="auto takes triton on a GPU")
def test_a_gpu_takes_fused_kernels_for_large_additive_scores():
    score = regard.scores.Additive.of_projected(64).to("cuda")
    small, large = (torch.randn(2, count, 64, device="cuda") for count in (64, 1024))
    assert chosen(small, small, small, score) == "reference"
    assert chosen(large, large, large, score) == "triton"
    assert chosen(large, large, large, score, dropout=0.5) == "triton"
    assert chosen(large.double(), large.double(), large.double(), score.double()) != "triton"


@pytest.mark.parametrize("score", ["laplacian", "gaussian", "squared_distance"])
def test_compiled_training_over_distances_on_a_gpu_goes_to_an_operator(score, monkeypatch):
    """Inductor computes wrong gradients of the plain equations there; see `choice._needs_operator`."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with FakeTensorMode():
        heads = torch.empty(2, 8, 600, 2, device="cuda")
        assert chosen(heads, heads, heads, score) in ("triton", "blocked")
        with torch.no_grad():
            assert chosen(heads, heads, heads, score) == "reference"
        assert chosen(heads.cpu()[..., :7, :], heads.cpu()[..., :7, :], heads.cpu()[..., :7, :], score) == "reference"
