"""Two and four processes give the outputs and gradients of one process, and raise errors together."""

import pytest
import torch
from tests.refuses import refuses
from tests.sharding.cases import CASES
from tests.sharding.layer_scenarios import SCENARIOS as OF_LAYERS
from tests.sharding.ranks import outcomes
from tests.sharding.scenarios import SCENARIOS

from regard import sharding

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")

LAYERS = {scenario.__name__ for scenario in OF_LAYERS}


@pytest.mark.parametrize(("ranks", "name"), [(ranks, name) for ranks, cases in CASES.items() for name in cases])
def test_shards_equal_the_whole(ranks, name, tmp_path_factory):
    assert outcomes(ranks, tmp_path_factory)[name] == ""


@pytest.mark.parametrize(
    ("ranks", "name"),
    [(ranks, name) for ranks, scenarios in SCENARIOS.items() for name in scenarios if name not in LAYERS],
)
def test_scenario(ranks, name, tmp_path_factory):
    assert outcomes(ranks, tmp_path_factory)[name] == ""


def test_without_process_group_the_error_names_torch_distributed():
    tokens = torch.randn(5, 3)
    with refuses("group", "torch.distributed"):
        sharding.attend(tokens, tokens, tokens, group=None)
