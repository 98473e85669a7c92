"""Memory that nobody wrote is NaN while backends are tested, so that reading it is seen."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _poison(monkeypatch):
    """torch fills what torch.empty, new_empty, empty_like and resize_ return with NaN, in C++ as in Python."""
    before = torch.are_deterministic_algorithms_enabled()
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)
