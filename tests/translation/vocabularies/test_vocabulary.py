"""What every vocabulary promises, whatever its unit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.refuses import refuses

from regard.errors import RegardError
from regard.translation.symbols import BEGIN, COUNT, END, PAD, UNKNOWN
from regard.translation.text import normalise
from regard.translation.vocabularies import UNITS, Vocabulary, learn, load

TEXTS = ["thé cät sat, 東京 tower!", "a cät & a dög 😀", "the 𝔘nicode tower 'says' it", "שלום world ไทย <b>"] * 3
LETTERS = sorted(set("".join(TEXTS)) - {" "})
WORDS = sorted(set(" ".join(TEXTS).split()))
VOCABULARIES = {unit: learn(unit, TEXTS, 120 if unit == "bpe" else None) for unit in UNITS}

# Blanks of several kinds between words that are all known.
known_words = st.lists(st.sampled_from(WORDS), max_size=8)
known_letters = st.lists(st.text(LETTERS, min_size=1, max_size=9), max_size=6)
blanks = st.sampled_from([" ", "  ", "\t", "\u00a0", " \u3000"])


@pytest.fixture(params=UNITS, scope="module")
def unit(request):
    return request.param


@pytest.fixture(scope="module")
def vocabulary(unit):
    return VOCABULARIES[unit]


def known(unit):
    return known_words if unit == "words" else known_letters


def test_is_a_vocabulary(vocabulary, unit):
    assert isinstance(vocabulary, Vocabulary)
    assert vocabulary.unit == unit
    assert repr(vocabulary) == f"{type(vocabulary).__name__}({len(vocabulary)} ids)"


def test_the_symbols_come_first(vocabulary):
    assert vocabulary.pieces([PAD, UNKNOWN, BEGIN, END]) == ["<pad>", "⁇", "<s>", "</s>"]
    assert min(min(ids) for ids in vocabulary.encode_all(TEXTS)) >= COUNT
    assert max(max(ids) for ids in vocabulary.encode_all(TEXTS)) < len(vocabulary)


@given(st.data(), blanks)
def test_known_text_comes_back(unit, data, blank):
    text = blank + blank.join(data.draw(known(unit)))
    vocabulary = VOCABULARIES[unit]
    ids = vocabulary.encode(text)
    assert UNKNOWN not in ids
    assert vocabulary.decode([BEGIN, *ids, END, PAD]) == normalise(text)


def test_escapes_are_undone(vocabulary):
    assert vocabulary.decode(vocabulary.encode("&apos;says&apos;")) == "'says'"
    assert vocabulary.encode("&lt;b&gt;") == vocabulary.encode("<b>")


def test_what_was_escaped_twice_is_still_escaped_once(unit):
    raw, clean = "a &amp;lt; b", "a &lt; b"
    vocabulary = learn(unit, [normalise(raw)], 30)
    assert vocabulary.to_bytes() == learn(unit, [raw], 30).to_bytes()
    for text in (raw, normalise(raw)):
        assert vocabulary.decode(vocabulary.encode(text)) == clean
        assert vocabulary.encode_all([text]) == [vocabulary.encode(text)]
        assert len(vocabulary.spans(text)) == len(vocabulary.encode(text))


@given(st.lists(st.text(), max_size=5))
def test_all_at_once_is_one_by_one(unit, texts):
    vocabulary = VOCABULARIES[unit]
    assert vocabulary.encode_all(iter(texts)) == [vocabulary.encode(text) for text in texts]


@given(st.text())
def test_spans_cover_the_text_in_order(unit, text):
    vocabulary, clean = VOCABULARIES[unit], normalise(text)
    spans = vocabulary.spans(text)
    assert len(spans) == len(vocabulary.encode(text))
    position = 0
    for start, end in spans:
        assert position <= start <= end
        assert clean[position:start] in ("", " ", "▁")  # only the blank before a word is in no token
        position = end
    assert position == len(clean)


@given(st.data())
def test_a_span_is_what_the_token_says(unit, data):
    text = " ".join(data.draw(known(unit)))
    vocabulary = VOCABULARIES[unit]
    for piece, (start, end) in zip(vocabulary.pieces(vocabulary.encode(text)), vocabulary.spans(text), strict=True):
        said = piece.replace("▁", " ")
        assert text[start:end] == (said.strip() or said[: end - start])


@given(st.data())
def test_words_are_numbered_as_in_the_text(unit, data):
    words = data.draw(known(unit))
    vocabulary = VOCABULARIES[unit]
    ids = vocabulary.encode(" ".join(words))
    numbers = vocabulary.words([*ids, END])
    assert numbers[-1] == -1
    for number, word in enumerate(words):
        ours = [token for token, of in zip(ids, numbers, strict=False) if of == number]
        assert vocabulary.decode(ours) == word


@given(st.data())
def test_any_ids_are_text_with_its_words(unit, data):
    vocabulary = VOCABULARIES[unit]
    ids = data.draw(st.lists(st.integers(0, len(vocabulary) - 1)))
    text = vocabulary.decode(ids)
    assert text == " ".join(text.split())
    assert max(vocabulary.words(ids), default=-1) + 1 == len(text.split())
    assert len(vocabulary.pieces(ids)) == len(vocabulary.words(ids)) == len(ids)


def test_nothing_is_nothing(vocabulary):
    assert vocabulary.encode(" ") == vocabulary.spans("") == vocabulary.words([]) == []
    assert vocabulary.encode_all([]) == []
    assert vocabulary.decode([]) == ""


def test_an_id_that_is_not_there(vocabulary):
    for method in (vocabulary.decode, vocabulary.pieces, vocabulary.words):
        with refuses("ids", f"{len(vocabulary)} at position 1", f"from 0 to {len(vocabulary) - 1}"):
            method([4, len(vocabulary)])
        with refuses("ids", "1 at position"):
            method([-1])


@pytest.mark.parametrize("other", UNITS)
def test_saved_and_read(vocabulary, unit, other):
    data = vocabulary.to_bytes()
    if unit == other:
        again = load(unit, data)
        assert len(again) == len(vocabulary)
        assert again.to_bytes() == data
        assert again.encode_all(TEXTS) == vocabulary.encode_all(TEXTS)
    else:
        with refuses("vocabulary", "Check", "file"):
            load(other, data)


def test_learning_again_gives_the_same(vocabulary, unit):
    assert learn(unit, iter(TEXTS), len(vocabulary)).to_bytes() == learn(unit, TEXTS, len(vocabulary)).to_bytes()


def survives(unit, data):
    """Whether it is read, and then works; a refusal says what to do."""
    try:
        vocabulary = load(unit, data)
    except RegardError as refusal:
        return "learn the vocabulary again" not in refusal.repair
    for text in TEXTS[:4]:
        vocabulary.decode(vocabulary.encode(text))
        assert len(vocabulary.spans(text)) == len(vocabulary.encode(text))
    return True


@settings(max_examples=60)
@given(st.data())
def test_cut_off_data_are_refused(unit, data):
    whole = VOCABULARIES[unit].to_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert not survives(unit, whole[:cut]) or unit == "bpe"  # a shorter sentencepiece model may be a model


@settings(max_examples=150)
@given(st.data())
def test_flipped_bytes_never_crash(unit, data):
    damaged = bytearray(VOCABULARIES[unit].to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    survives(unit, bytes(damaged))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(unit, data):
    assert not survives(unit, data)
