"""The update as a graph of a GPU is the update."""

import pytest
import torch
from tests.translation.training.toys import make_recipe

from regard.translation.batching import Plan, make_batch
from regard.translation.model import EncoderDecoder
from regard.translation.training.graphed import GraphedUpdate
from regard.translation.training.optimiser import make_optimiser
from regard.translation.training.update import Update

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are of a GPU")


def test_replays_are_the_eager_updates():
    recipe = make_recipe(embedding_dropout=0.0, state_dropout=0.0, readout_dropout=0.0)
    results = []
    for wrap in (lambda update: update, GraphedUpdate):
        torch.manual_seed(0)
        with torch.device("cpu"):
            model = EncoderDecoder(recipe.model, 10, 10)
        model = model.to("cuda").train()
        update = wrap(Update(model, make_optimiser(model, recipe.training), recipe.training))
        for step in range(5):
            with torch.device("cpu"):
                batch = make_batch(Plan((step % 2,), 1, 4, 4, 3), [[4, 5], [6, 7, 8]], [[5, 6], [7, 8]])
            update(batch)
        results.append((update.totals.read(), [parameter.detach().cpu() for parameter in model.parameters()]))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-4)
    torch.testing.assert_close(results[1][1], results[0][1], rtol=1e-3, atol=1e-5)
