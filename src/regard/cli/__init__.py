"""The command line: the verbs of `regard`."""

import sys


def main() -> None:
    """Run the command line; if a library that it needs is missing, say how to install it."""
    try:
        import rich  # noqa: F401 (verbs use it when they run)

        from regard.cli.app import run
    except ModuleNotFoundError as missing:
        library = (missing.name or "").partition(".")[0]
        if library not in {"cyclopts", "rich"}:
            raise
        sys.exit(f'regard: the command line needs {library}; install it with pip install "regard[cli]".')
    sys.exit(run())
