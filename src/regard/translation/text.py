"""One written form for every sentence, whatever file it came from."""

import re
import unicodedata

from regard.errors import RegardError

# What Moses' tokeniser writes for the characters that mean something to its decoder.
_ESCAPES = {
    "&apos;": "'",
    "&quot;": '"',
    "&lt;": "<",
    "&gt;": ">",
    "&#91;": "[",
    "&#93;": "]",
    "&#124;": "|",
    "&amp;": "&",
}
_ESCAPED = re.compile("|".join(map(re.escape, _ESCAPES)))


class Normalised(str):
    """A text as `normalise` leaves it, and leaves it from then on: whoever needs one may ask for it again."""

    __slots__ = ()


def normalise(text: str) -> Normalised:
    r"""Undo Moses' escapes, compose characters (NFC), and write white space of any kind as single blanks, trimmed.

    Each escape is undone once, in one pass over the text: what was escaped twice is still escaped once, however often
    the result is normalised on its way.

    >>> normalise(" it &apos;s\t a  cafe\u0301\n"), normalise(normalise("&amp;apos;"))
    ("it 's a café", '&apos;')
    """
    if isinstance(text, Normalised):
        return text
    if "&" in text:
        text = _ESCAPED.sub(lambda escape: _ESCAPES[escape[0]], text)
    if not text.isascii():
        _check_unicode(text)
        text = unicodedata.normalize("NFC", text)
    return Normalised(" ".join(text.split()))


def _check_unicode(text: str) -> None:
    """Refuse lone surrogates, which is what Python makes of bytes on the command line that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as refusal:
        raise RegardError(
            "text",
            got=f"{text[refusal.start : refusal.end]!a} at character {refusal.start}, half of a character",
            needed="Unicode text",
            repair="Pass the sentence in UTF-8.",
        ) from None
