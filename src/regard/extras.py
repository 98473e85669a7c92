"""Packages of the optional extras: imported where they are used, and named in an error if they are missing."""

from importlib import import_module
from typing import Any

from regard.errors import RegardError


class MissingPackageError(RegardError):
    """A package of an extra is not installed."""


def require(module: str, extra: str, argument: str) -> Any:
    """Import a module of an extra.

    Args:
        module: its dotted name.
        extra: the extra that installs it, such as "translation".
        argument: what needs it, for the error message.

    Returns:
        The module.

    Raises:
        MissingPackageError: if it is not installed.

    >>> require("json.decoder", "translation", "model").JSONDecoder.__name__
    'JSONDecoder'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        raise MissingPackageError(
            argument,
            got=f"no module named {missing.name}",
            needed=module.partition(".")[0],
            repair=f'Install it with pip install "regard[{extra}]".',
        ) from None
