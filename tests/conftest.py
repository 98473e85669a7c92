"""Every test starts from one seed, on one thread."""

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("regard", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("regard")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(20240229)
