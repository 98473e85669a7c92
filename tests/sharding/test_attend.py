"""Two and four processes give what one gives: outputs and all gradients; and they refuse together."""

import pytest
import torch
from tests.refuses import refuses
from tests.sharding.cases import CASES
from tests.sharding.layer_stories import STORIES as OF_LAYERS
from tests.sharding.ranks import outcomes
from tests.sharding.stories import STORIES

from regard import sharding

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")

LAYERS = {story.__name__ for story in OF_LAYERS}


@pytest.mark.parametrize(("ranks", "name"), [(ranks, name) for ranks, cases in CASES.items() for name in cases])
def test_shards_equal_the_whole(ranks, name, tmp_path_factory):
    assert outcomes(ranks, tmp_path_factory)[name] == ""


@pytest.mark.parametrize(
    ("ranks", "name"), [(ranks, name) for ranks, stories in STORIES.items() for name in stories if name not in LAYERS]
)
def test_together(ranks, name, tmp_path_factory):
    assert outcomes(ranks, tmp_path_factory)[name] == ""


def test_without_processes_it_says_what_is_missing():
    tokens = torch.randn(5, 3)
    with refuses("group", "torch.distributed"):
        sharding.attend(tokens, tokens, tokens, group=None)
