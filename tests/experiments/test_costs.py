"""Costs are measured on the same batches, and peaks of memory agree with what is allocated."""

import os
import sys

import pytest
import torch
from tests.experiments.settings import DOT, tiny

import regard
from regard.experiments import costs as costs_of
from regard.experiments.costs import (
    Costs,
    ModelCost,
    ScoreCost,
    ScoreCosts,
    draw_costs,
    draw_score_costs,
    measure_costs,
    measure_score_costs,
    peak_bytes,
)
from regard.experiments.variants import ADDITIVE, EVERY, NONE
from regard.translation.dataset import learn_vocabularies
from regard.translation.model import EncoderDecoder

CPU = torch.device("cpu")
KILO = 1000 * 4  # bytes of 1,000 floats
FEW = 200  # bytes of the numbers that are added


def test_what_is_freed_is_not_counted_twice():
    given = torch.ones(1000)

    def chain():
        tensor = given
        for _ in range(10):
            tensor = tensor + 1

    assert peak_bytes(chain, CPU) == pytest.approx(2 * KILO, abs=FEW)


def test_what_is_kept_adds_up():
    given = torch.ones(1000)
    found = peak_bytes(lambda: [given + number for number in range(10)], CPU)
    assert found == pytest.approx(10 * KILO, abs=FEW)


def test_views_and_changes_in_place_are_nothing_new():
    given = torch.ones(1000)
    assert peak_bytes(lambda: given.view(10, 100).t().add_(1), CPU) <= FEW


def test_gradients_are_followed_through_hand_written_functions():
    class Keeping(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.aside = [x + number for number in range(5)]  # not by save_for_backward: hooks would not see it
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * len(ctx.aside)

    given = torch.ones(1000, requires_grad=True)
    found = peak_bytes(lambda: torch.autograd.grad(Keeping.apply(given).sum(), given), CPU)
    assert 6 * KILO <= found <= 9 * KILO


def test_a_longer_sequence_takes_more():
    weight = torch.randn(20, 20, requires_grad=True)

    def steps(count):
        def run():
            state = torch.ones(50, 20)
            for _ in range(count):
                state = torch.tanh(state @ weight)
            torch.autograd.grad(state.sum(), weight)

        return run

    short, long = peak_bytes(steps(5), CPU), peak_bytes(steps(20), CPU)
    assert long - short == pytest.approx(15 * 50 * 20 * 4, abs=FEW)


def test_the_buffers_of_an_operator_are_seen():
    query = torch.randn(1, 64, 32)
    score = regard.scores.Additive(32, 32, 32)
    with torch.no_grad():
        found = peak_bytes(lambda: regard.attend(query, query, query, score, backend="blocked"), CPU)
    whole = 2 * 64 * 32 + 64 * 64 + 64 * 32  # projected queries and keys, scores, output
    assert found > 3 * 4 * whole  # a tanh for each query, key and hidden unit of a tile


def test_nothing_is_said_but_stderr_is_there_afterwards(capfd):
    kept = [torch.ones(1000)]
    peak_bytes(kept.clear, CPU)  # the end of a block that was there before
    print("still here", file=sys.stderr)
    assert capfd.readouterr() == ("", "still here\n")


def test_stderr_is_there_after_a_failure(capfd):
    with pytest.raises(ZeroDivisionError):
        peak_bytes(lambda: 1 / 0, CPU)
    os.write(2, b"still here")
    assert capfd.readouterr().err == "still here"


def test_every_model_on_the_same_batches(monkeypatch):
    monkeypatch.setattr(costs_of, "BATCHES", 2)
    made = tiny()
    found = measure_costs(made, made.competitors)
    sizes = [len(vocabulary) for vocabulary in learn_vocabularies(made.recipe, made.examples().train)]
    for one in found.models:
        model = EncoderDecoder(made.recipe_of(one.competitor, 1).model, *sizes)
        assert one.parameters == sum(parameter.numel() for parameter in model.parameters())
        assert one.speed > 0
        assert one.training_seconds == one.updates * one.seconds > 0
    assert found.of(NONE).bytes < found.of(DOT).bytes


def test_the_text_and_the_table():
    costs = Costs((ModelCost(ADDITIVE, 12345, 6789.0, 3 * 2**20, 10, 0.5),), 1, "cpu")
    assert "additive      12,345            6,789            3.0" in str(costs)
    assert "on 1 thread." in str(costs)
    assert costs.table().rows == (("additive", 12345, 6789.0, 3 * 2**20, 0.5),)
    assert costs.to_dict()["models"][0]["competitor"]["attention"] == "additive"


HIDDEN = 8


def test_parameters_by_the_formulas_of_the_chapter():
    costs = measure_score_costs(EVERY, batch=2, queries=3, keys=5, hidden=HIDDEN)
    found = {str(one.competitor): one.parameters for one in costs.scores}
    pairs = HIDDEN * 2 * HIDDEN
    assert found["dot"] == found["scaled dot"] == found["squared distance"] == pairs  # keys to the query's size
    assert found["bilinear"] == pairs  # eq. 10
    assert found["additive"] == HIDDEN * (HIDDEN + 2 * HIDDEN + 1)  # eq. 12
    assert NONE not in [one.competitor for one in costs.scores]
    assert all(one.speed > 0 and one.bytes > 0 for one in costs.scores)
    assert "query size 8, key size 16" in str(costs)
    assert len(costs.table().rows) == len(EVERY) - 1


def test_additive_takes_more_memory_and_parameters_than_a_dot_product():
    """Speeds are not compared, because a busy machine changes their order."""
    costs = measure_score_costs((DOT, ADDITIVE))
    found = {str(one.competitor): one for one in costs.scores}
    assert found["additive"].bytes > 1.5 * found["scaled dot"].bytes
    assert found["additive"].parameters > found["scaled dot"].parameters


def test_of_models():
    models = (ModelCost(NONE, 1000, 9000.0, 2**20, 1, 1.0), ModelCost(ADDITIVE, 2000, 4500.0, 3 * 2**20, 1, 1.0))
    panels = draw_costs(Costs(models, 1, "cpu")).axes
    found = [[bar.get_width() for bar in axes.patches] for axes in panels]
    assert found == [pytest.approx(numbers) for numbers in ([1, 2], [9, 4.5], [1, 3])]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["no attention", "additive"]


def test_of_scores():
    panels = draw_score_costs(ScoreCosts((ScoreCost(ADDITIVE, 5000, 250.0, 2**19),), {}, 1, "cpu")).axes
    assert [axes.patches[0].get_width() for axes in panels] == pytest.approx([5, 0.25, 0.5])
