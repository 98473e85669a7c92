"""Kept measurements: copies of files of benchmarks/results, which is not part of the package."""

import json
from importlib.resources import files
from typing import Any


def read(name: str) -> dict[str, Any]:
    """One of the files beside this one, by its name without the ending."""
    return json.loads(files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8"))
