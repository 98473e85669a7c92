"""The generated parts of pages: each stands between its two markers, and only there is a page written by a program."""

import re
from collections.abc import Mapping
from pathlib import Path

BEGIN = "<!-- generated: {} -->\n"
END = re.compile(r"<!-- end(?: of [\w ]+)? -->")


def part(text: str, name: str) -> str:
    """What stands between the markers of that name."""
    return text[slice(*_place(text, name))]


def renew(page: Path, parts: Mapping[str, str]) -> None:
    """Put every part between the markers of its name; the rest of the page stays as it is."""
    text = page.read_text(encoding="utf-8")
    for name, new in parts.items():
        begin, end = _place(text, name)
        text = text[:begin] + new + text[end:]
    page.write_text(text, encoding="utf-8")


def _place(text: str, name: str) -> tuple[int, int]:
    """Where the part begins and ends; a page without exactly one such place is refused before it is written."""
    marker = BEGIN.format(name)
    if text.count(marker) != 1:
        raise ValueError(f"the page has {text.count(marker)} markers {marker.strip()}, and needs one")
    begin = text.index(marker) + len(marker)
    end = END.search(text, begin)
    if end is None or BEGIN.partition("{")[0] in text[begin : end.start()]:
        raise ValueError(f"nothing ends what begins with {marker.strip()}: <!-- end --> is missing")
    return begin, end.start()
