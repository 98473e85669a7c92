"""Where the context comes from: any score, one head or several, or one vector for the whole sentence."""

import pytest
import torch

from regard.scores import Score
from regard.translation.model.architecture import SCORES, Architecture
from regard.translation.model.context import Fixed, make_context

ANNOTATIONS = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(3))
REAL = torch.arange(5) < torch.tensor([[5], [1], [3]])


def context_of(name, heads=1):
    return make_context(Architecture(embedding=3, hidden=8, attention=name, heads=heads))


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("name", [name for name in SCORES if name != "none"])
def test_contexts_are_means_of_real_annotations(name, heads):
    context = context_of(name, heads)
    memory = context.remember(ANNOTATIONS, REAL)
    found, weights = context.weights(torch.randn(3, 2, 8), memory)
    assert found.shape == (3, 2, 16)
    assert weights.shape == (3, 2, 5)
    assert not weights.masked_select(~REAL[:, None].expand_as(weights)).any()
    if heads == 1:
        sums = weights.sum(-1)
        assert bool(((sums - 1).abs() < 1e-5).logical_or(sums == 0).all())  # a compact kernel may see no word at all
        torch.testing.assert_close(found, weights @ ANNOTATIONS)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("name", ["additive", "bilinear", "dot", "scaled_dot", "cosine", "squared_distance"])
def test_without_a_compact_kernel_all_mass_is_spent(name, heads):
    context = context_of(name, heads)
    _, weights = context.weights(torch.randn(3, 2, 8), context.remember(ANNOTATIONS, REAL))
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2))


def test_the_fixed_vector_is_the_last_state_of_each_direction():
    context = context_of("none")
    assert isinstance(context, Fixed)
    found, weights = context.weights(torch.randn(3, 2, 8), context.remember(ANNOTATIONS, REAL))
    assert weights is None
    for row, last in enumerate((4, 0, 2)):
        wanted = torch.cat((ANNOTATIONS[row, last, :8], ANNOTATIONS[row, 0, 8:]))
        assert torch.equal(found[row], wanted.expand(2, -1))


def test_a_selected_memory_is_that_of_the_chosen_sentences():
    for name in ("additive", "none"):
        context = context_of(name)
        rows, query = torch.tensor([2, 0]), torch.randn(2, 1, 8)
        chosen = context.read(query, context.remember(ANNOTATIONS, REAL).select(rows))
        anew = context.read(query, context.remember(ANNOTATIONS[rows], REAL[rows]))
        torch.testing.assert_close(chosen, anew)


@pytest.mark.parametrize("heads", [1, 2])
def test_keys_are_projected_once_for_a_sentence(heads, monkeypatch):
    context = context_of("additive", heads)
    calls, prepare = [], type(context.attention.score).prepare_key

    def counted(self, *arguments):
        calls.append(1)
        return prepare(self, *arguments)

    monkeypatch.setattr(type(context.attention.score), "prepare_key", counted)
    assert isinstance(context.attention.score, Score)
    memory = context.remember(ANNOTATIONS, REAL)
    for _ in range(4):
        context.read(torch.randn(3, 2, 8), memory)
        context.weights(torch.randn(3, 2, 8), memory)
    assert len(calls) == 1
