"""Pages are held from the first call on, whichever way it goes."""

import pytest
import torch

import regard
from regard.backends.pages import hold_pages

CALLS = {
    "everyday": {},
    "torch": {"backend": "torch"},
    "blocked": {"score": "gaussian", "backend": "blocked"},
}


@pytest.mark.parametrize("settings", CALLS.values(), ids=CALLS)
def test_the_heap_is_taught_once_whatever_is_called(settings):
    """What it then holds depends on the machine: the benchmarks tell."""
    hold_pages.cache_clear()
    tokens = torch.randn(1, 1, 19, 4, requires_grad=True)
    for _ in range(2):
        regard.attend(tokens, tokens, tokens, **settings).sum().backward()
    assert hold_pages.cache_info().misses == 1
