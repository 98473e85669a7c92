"""Which installed fonts can write the words of a picture, whatever their script."""

from collections.abc import Iterable, Sequence

# Holds a box for every character there is, with a sign of its script in it; comes with matplotlib.
LAST_RESORT = "Last Resort High-Efficiency"


def families_for(words: Iterable[str], usual: Sequence[str] = ("DejaVu Sans",)) -> list[str]:
    """Font families that together write the words: the usual ones, then what they lack from any installed font.

    A character that no installed font has is drawn as a box of `LAST_RESORT`; in an SVG it stays text, and the
    reader's own fonts write it.
    """
    from matplotlib.font_manager import fontManager, get_font

    missing = {ord(character) for word in words for character in word if not character.isspace()}
    plain = {}
    for entry in sorted(fontManager.ttflist, key=lambda entry: (entry.name, entry.fname)):
        if entry.style == "normal" and entry.weight in (400, "normal", "regular"):
            plain.setdefault(entry.name, entry.fname)
    last = plain.pop(LAST_RESORT, None)
    families = []
    for name in (*usual, *(name for name in plain if name not in usual)):
        if name not in plain or not missing:
            continue
        font = get_font(plain[name])
        written = {character for character in missing if font.get_char_index(character)}
        if written or name in usual:
            families.append(name)
            missing -= written
    return [*(families or usual), *([LAST_RESORT] if missing and last else [])]
