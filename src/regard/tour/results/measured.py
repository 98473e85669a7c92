"""Curves out of the result files of additive attention: time and memory, whatever rows a file has."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from regard.tour.charts import Series

Page = Mapping[str, Any]
Measured = dict[str, list[Series]]
"""Where it was measured, to a curve for each form."""
Found = dict[str, dict[str, dict[int, list[float]]]]
"""Place, form, tokens, numbers."""


def timed(files: Mapping[str, Page]) -> Measured:
    """Seconds against tokens, for each device, direction and size, of every form that was kept, called from Python."""
    found: Found = {}
    for page in files.values():
        for row in page["rows"]:
            if "tokens" in row and isinstance(row.get("seconds"), dict) and not row.get("captured"):
                for name, times in row["seconds"].items():
                    _note(found, _place(page, row), _form(name, row), row["tokens"], times["median"])
    return _series(found)


def remembered(files: Mapping[str, Page]) -> Measured:
    """Peak bytes against tokens, forwards and backwards, for every row that tells them."""
    found: Found = {}
    for page in files.values():
        for row in page["rows"]:
            told = row.get("peak_bytes")
            peaks = dict(told) if isinstance(told, dict) else {} if told is None else {"regard.attend": told}
            if "textbook_bytes_at_least" in row:
                peaks["textbook, at least"] = row["textbook_bytes_at_least"]
            for name, size in peaks.items():
                if "tokens" in row and row.get("backward", True) and size is not None:
                    place = _place(page, {**row, "backward": True})
                    _note(found, place, _form(name, row), row["tokens"], size)
    return _series(found)


def _note(found: Found, place: str, form: str, tokens: int, number: float) -> None:
    found.setdefault(place, {}).setdefault(form, {}).setdefault(tokens, []).append(number)


def _series(found: Found) -> Measured:
    """In the order of the files; what was measured several times is its median."""
    return {
        place: [
            Series(form, [(tokens, median(numbers)) for tokens, numbers in sorted(at.items())], _look(form), marks=True)
            for form, at in forms.items()
        ]
        for place, forms in found.items()
    }


def _place(page: Page, row: Mapping[str, Any]) -> str:
    device = "GPU" if page["device"] == "cuda" else "CPU"
    direction = "forwards and backwards" if row.get("backward") else "forwards"
    return f"{device}, {direction}, batch {row.get('batch', 1)}, hidden size {row.get('hidden')}"


def _form(name: str, row: Mapping[str, Any]) -> str:
    """The competitor; ours with the error that was allowed."""
    allowed, name = row.get("tolerance"), name.replace("torch.compile", "compiled")
    return f"{name}, within {allowed:g}" if name.startswith("regard") and allowed else name


def _look(form: str) -> str:
    """One look for each form, on every chart."""
    if form.startswith("regard"):
        return "c2" if "within" in form else "c0 dashed" if "compiled" in form else "c0"
    return ("c3" if "compile" in form else "c4") + (" dashed" if "product" in form else "")
