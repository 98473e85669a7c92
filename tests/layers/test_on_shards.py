"""A multi-head layer on shards gives what it gives on one process."""

import pytest
import torch
from tests.sharding.layer_scenarios import SCENARIOS
from tests.sharding.ranks import outcomes

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")


@pytest.mark.parametrize("name", [scenario.__name__ for scenario in SCENARIOS])
def test_on_shards(name, tmp_path_factory):
    assert outcomes(2, tmp_path_factory)[name] == ""
