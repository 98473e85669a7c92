"""Which installed fonts can write the words of a picture, whatever their script; what none can write is named."""

from __future__ import annotations

import contextlib
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

# Holds a box for every character there is, with a sign of its script in it; comes with matplotlib.
LAST_RESORT = "Last Resort High-Efficiency"
CJK = {"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO"}


class MissingFontWarning(UserWarning):
    """No installed font has some of the characters of a picture."""


def families_for(words: Iterable[str], usual: Sequence[str] = ("DejaVu Sans",)) -> list[str]:
    """Font families that together write the words: the usual ones, then what they lack from any installed font.

    A character that no installed font has is drawn as a box of `LAST_RESORT`, with a warning that names its script and
    a font to install; in an SVG it stays text, and the reader's own fonts write it.
    """
    wanted = {ord(character) for word in words for character in word if not _is_invisible(character)}
    families, missing = _choose(wanted, usual)
    if missing and _learn_new_fonts():
        families, missing = _choose(wanted, usual)
    if missing:
        warnings.warn(_missing(sorted(map(chr, missing))), MissingFontWarning, stacklevel=2)
    return [*(families or usual), *([LAST_RESORT] if missing else [])]


def _choose(missing: set[int], usual: Sequence[str]) -> tuple[list[str], set[int]]:
    """Families, and the characters that none of them has."""
    from matplotlib.font_manager import fontManager, get_font

    plain = {}
    for entry in sorted(fontManager.ttflist, key=lambda entry: (entry.name, entry.fname)):
        if entry.style == "normal" and entry.weight in (400, "normal", "regular"):
            plain.setdefault(entry.name, entry.fname)
    plain.pop(LAST_RESORT, None)
    families = []
    for name in (*usual, *(name for name in plain if name not in usual)):
        if name not in plain or not missing:
            continue
        font = get_font(plain[name])
        written = {character for character in missing if font.get_char_index(character)}
        if written or name in usual:
            families.append(name)
            missing = missing - written
    return families, missing


def _learn_new_fonts() -> bool:
    """Tell matplotlib of fonts that were installed after it made its list; say whether there are any."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    known = {Path(entry.fname).resolve() for entry in fontManager.ttflist}
    learnt = False
    for path in sorted(findSystemFonts()):
        if Path(path).resolve() not in known:
            with contextlib.suppress(OSError, RuntimeError, ValueError):  # a file that is no font after all
                fontManager.addfont(path)
                learnt = True
    return learnt


def script_of(character: str) -> str:
    """The script of a character in print, from its Unicode name.

    >>> script_of("ก"), script_of("日")
    ('Thai', 'CJK')
    """
    first = unicodedata.name(character, "UNNAMED").partition(" ")[0].partition("-")[0]
    return "CJK" if first in CJK else first.title()


def _missing(characters: Sequence[str]) -> str:
    examples: dict[str, str] = {}
    for character in characters:
        if unicodedata.category(character).startswith("L"):
            examples.setdefault(script_of(character), character)
    if not examples:
        shown = ", ".join(repr(character) for character in characters[:5])
        return f"No installed font has {shown}: boxes are drawn instead, except in an SVG, where they stay text."
    named = " and ".join(f"{script} (for example {one!r})" for script, one in examples.items())
    fonts = " and ".join(f"Noto Sans {script}" for script in examples)
    return (
        f"No installed font writes {named}: boxes are drawn instead, except in an SVG, where words stay text. "
        f"Install a font that does, such as {fonts}."
    )


def _is_invisible(character: str) -> bool:
    """Blanks, and marks of direction or joining that have no shape of their own."""
    return character.isspace() or unicodedata.category(character) in {"Cf", "Cc"}
