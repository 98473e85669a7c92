"""The kernels as a reader calls them."""

TITLES = {"cosine_kernel": "cosine"}


def title(kernel: str) -> str:
    """The name without what only the code needs."""
    return TITLES.get(kernel, kernel)
