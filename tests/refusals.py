"""Expect a refusal by its argument and by a few words of its text, so that its sentences can be rewritten."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from regard import RegardError


@contextmanager
def refuses(argument: str, *words: str) -> Iterator[None]:
    """Fail unless the block raises a RegardError about `argument` whose text has all these words."""
    with pytest.raises(RegardError) as caught:
        yield
    assert caught.value.argument == argument, f"the refusal is about {caught.value.argument!r}: {caught.value}"
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"the refusal does not say {missing}: {caught.value}"
