"""Kernels as a reader calls them."""

from regard.regression.experiment.names import title


def test_only_the_cosine_needs_another_name():
    assert title("cosine_kernel") == "cosine"
    assert title("gaussian") == "gaussian"
