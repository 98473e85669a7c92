"""Kernels as a reader calls them."""

from regard.regression.experiment.names import title
from regard.scores.names import KERNEL_SCORES


def test_every_kernel_has_a_title_of_its_own_in_words():
    titles = {title(kernel) for kernel in KERNEL_SCORES}
    assert len(titles) == len(KERNEL_SCORES)
    assert all(name.replace(" ", "").isalpha() for name in titles)
    assert "cosine" in titles
