"""A multi-head layer on shards gives what it gives on one process."""

import pytest
import torch
from tests.sharding.layer_stories import STORIES
from tests.sharding.ranks import outcomes

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")


@pytest.mark.parametrize("name", [story.__name__ for story in STORIES])
def test_on_shards(name, tmp_path_factory):
    assert outcomes(2, tmp_path_factory)[name] == ""
