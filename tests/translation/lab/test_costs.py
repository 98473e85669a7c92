"""Costs of models: counted where they can be, and in the right order where they are measured."""

from tests.translation.lab.settings import DOT, tiny

from regard.translation.dataset import learn_vocabularies
from regard.translation.lab import costs as costs_of
from regard.translation.lab.competitors import ADDITIVE, NONE
from regard.translation.lab.costs import Costs, ModelCost, measure_costs
from regard.translation.model import EncoderDecoder


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
