"""Normalisation: escapes undone once, characters composed, blanks single."""

import pickle
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.refuses import refuses

from regard.translation.text import normalise

MOSES = [("&", "&amp;"), ("|", "&#124;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&apos;"), ('"', "&quot;")]
MOSES += [("[", "&#91;"), ("]", "&#93;")]


def escape(text):
    """As Moses does it: the ampersand first."""
    for plain, escaped in MOSES:
        text = text.replace(plain, escaped)
    return text


@given(st.text("ab&;'\"<>[]|#91apos mlt", max_size=30))
def test_what_moses_escaped_comes_back(text):
    assert normalise(escape(text)) == " ".join(text.split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("&amp;apos;", "&apos;"),
        ("&amp;amp;lt;", "&amp;lt;"),
        ("&unknown; & &amp", "&unknown; & &amp"),
        ("a\u00a0b\u202f\u3000c\u2028\r\n", "a b c"),
        ("cafe\u0301", "café"),
        ("\u1112\u1161\u11ab", "한"),
        ("  ", ""),
    ],
)
def test_by_hand(text, expected):
    assert normalise(text) == expected


@given(st.text())
def test_composed_and_with_single_blanks(text):
    clean = normalise(text)
    assert unicodedata.is_normalized("NFC", clean)
    assert clean.split() == [] or clean == " ".join(clean.split())
    assert not any(letter.isspace() and letter != " " for letter in clean)


@given(st.text().filter(lambda text: "&" not in text))
def test_once_is_enough_where_nothing_is_escaped_twice(text):
    assert normalise(normalise(text)) == normalise(text)


@given(st.lists(st.sampled_from(["&amp;", "lt;", "amp;", "a", " "])).map("".join))
def test_what_is_normalised_is_not_normalised_again(text):
    once = normalise(text)
    assert normalise(once) is once
    assert normalise(pickle.loads(pickle.dumps(once))) == once


def test_half_a_character_is_refused():
    with refuses("text", "'\\udcff'"):
        normalise("ab\udcff")


def test_characters_are_composed_but_not_replaced_by_similar_ones():
    """NFC, not NFKC, which would write a ligature as two letters and a superscript as a digit."""
    assert normalise("ﬁn x² e\u0301") == "ﬁn x² é"
