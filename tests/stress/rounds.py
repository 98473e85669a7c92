"""A plugin of pytest: property tests alone, each with as many examples as REGARD_EXAMPLES says, from any seed."""

import os

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop what draws nothing; a test that chose its number of examples for `make test` gets another one here."""
    examples = int(os.environ["REGARD_EXAMPLES"])
    drawing = [item for item in items if is_hypothesis_test(getattr(item, "obj", None))]
    for item in drawing:
        # hypothesis reads it at each call; its own decorator refuses to be applied a second time.
        item.obj._hypothesis_internal_use_settings = settings(
            item.obj._hypothesis_internal_use_settings,
            max_examples=examples,
            deadline=None,
            derandomize=False,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
    config.hook.pytest_deselected(items=[item for item in items if item not in drawing])
    items[:] = drawing
