"""What translation needs beyond the core, asked for where it is used and named where it is missing."""

from importlib import import_module
from typing import Any

from regard.errors import RegardError


class MissingPackageError(RegardError):
    """A package of the extra `regard[translation]` is not installed."""


def extra(module: str, user: str) -> Any:
    """Import a module of the extra `regard[translation]`; without it, refuse and name the extra.

    module: its dotted name. user: what needs it, for the error.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        raise MissingPackageError(
            user,
            got=f"no module named {missing.name}",
            needed=module.partition(".")[0],
            repair='Install it with pip install "regard[translation]".',
        ) from None
