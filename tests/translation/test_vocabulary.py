"""Every unit keeps the contract of a vocabulary, and damaged vocabularies are refused."""

import io
import json
import subprocess
import sys

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.refuses import refuses

from regard.errors import RegardError
from regard.translation.text import normalise
from regard.translation.vocabulary import (
    BEGIN,
    BPE,
    END,
    NUM_SPECIAL,
    PAD,
    UNITS,
    UNKNOWN,
    Characters,
    Vocabulary,
    Words,
    join_surfaces,
    learn_vocabulary,
    load_vocabulary,
    word_indices,
)

TEXTS = ["thé cät sat, 東京 tower!", "a cät & a dög 😀", "the 𝔘nicode tower 'says' it", "שלום world ไทย <b>"] * 3
LETTERS = sorted(set("".join(TEXTS)) - {" "})
WORDS = sorted(set(" ".join(TEXTS).split()))
VOCABULARIES = {unit: learn_vocabulary(unit, TEXTS, 120 if unit == "bpe" else None) for unit in UNITS}

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
    assert min(min(ids) for ids in vocabulary.encode_all(TEXTS)) >= NUM_SPECIAL
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
    vocabulary = learn_vocabulary(unit, [normalise(raw)], 30)
    assert vocabulary.to_bytes() == learn_vocabulary(unit, [raw], 30).to_bytes()
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
    numbers = vocabulary.word_indices([*ids, END])
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
    assert max(vocabulary.word_indices(ids), default=-1) + 1 == len(text.split())
    assert len(vocabulary.pieces(ids)) == len(vocabulary.word_indices(ids)) == len(ids)


def test_nothing_is_nothing(vocabulary):
    assert vocabulary.encode(" ") == vocabulary.spans("") == vocabulary.word_indices([]) == []
    assert vocabulary.encode_all([]) == []
    assert vocabulary.decode([]) == ""


def test_an_id_that_is_not_there(vocabulary):
    for method in (vocabulary.decode, vocabulary.pieces, vocabulary.word_indices):
        with refuses("ids", f"{len(vocabulary)} at position 1", f"from 0 to {len(vocabulary) - 1}"):
            method([4, len(vocabulary)])
        with refuses("ids", "1 at position"):
            method([-1])


@pytest.mark.parametrize("other", UNITS)
def test_saved_and_read(vocabulary, unit, other):
    data = vocabulary.to_bytes()
    if unit == other:
        again = load_vocabulary(unit, data)
        assert len(again) == len(vocabulary)
        assert again.to_bytes() == data
        assert again.encode_all(TEXTS) == vocabulary.encode_all(TEXTS)
    else:
        with refuses("vocabulary", "Check", "file"):
            load_vocabulary(other, data)


def test_learning_again_gives_the_same(vocabulary, unit):
    assert (
        learn_vocabulary(unit, iter(TEXTS), len(vocabulary)).to_bytes()
        == learn_vocabulary(unit, TEXTS, len(vocabulary)).to_bytes()
    )


def survives(unit, data):
    """Whether it is read, and then works; a refusal says what to do."""
    try:
        vocabulary = load_vocabulary(unit, data)
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
    if unit == "bpe":  # a shorter sentencepiece model may be a model; it must be refused or work
        survives(unit, whole[:cut])
    else:
        assert not survives(unit, whole[:cut])


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


@pytest.mark.parametrize(
    ("surfaces", "words"),
    [
        ([" one", " two", "o"], [0, 1, 1]),
        (["o", "n", "e", " ", "t"], [0, 0, 0, 1, 1]),
        ([" ", "a", " ", " ", "b", " "], [0, 0, 1, 1, 1, -1]),
        ([None, " a", None, "b", None], [-1, 0, -1, 0, -1]),
        ([" "], [-1]),
        ([], []),
    ],
)
def test_by_hand(surfaces, words):
    assert word_indices(surfaces) == words


@given(st.lists(st.sampled_from([None, " ", "a", "b", " a", " bc", "⁇"])))
def test_the_tokens_of_a_word_spell_it(surfaces):
    numbers = word_indices(surfaces)
    assert len(numbers) == len(surfaces)
    spelt: dict[int, str] = {}
    for number, surface in zip(numbers, surfaces, strict=True):
        if number >= 0:
            spelt[number] = spelt.get(number, "") + (surface or "").strip()
    assert [spelt[number] for number in sorted(spelt)] == join_surfaces(surfaces).split()
    assert all(surface is None or not surface.strip() for surface, n in zip(surfaces, numbers, strict=True) if n < 0)


LETTER_TEXTS = ["b a a", "b a c", "d"]


def test_the_most_frequent_first_then_by_the_alphabet():
    assert Words.learn(LETTER_TEXTS).tokens == ("a", "b", "c", "d")
    assert Words.learn(LETTER_TEXTS, size=5).tokens == ("a",)
    assert Characters.learn(LETTER_TEXTS).tokens == (" ", "a", "b", "c", "d")
    assert Characters.learn(LETTER_TEXTS, size=6).tokens == (" ", "a")


def test_what_was_not_kept_is_unknown():
    words = Words.learn(LETTER_TEXTS, size=6)
    assert words.encode("a c b") == [4, UNKNOWN, 5]
    assert words.decode(words.encode("a c b")) == "a ⁇ b"


def test_texts_are_normalised_before_they_are_learnt():
    assert Words.learn(["it &apos;s\u00a0cafe\u0301"]).tokens == ("'s", "café", "it")


@pytest.mark.parametrize("cls", [Characters, Words])
def test_no_dropout(cls):
    vocabulary = cls.learn(LETTER_TEXTS)
    with refuses("dropout", f"0.1 for {cls.unit}"):
        vocabulary.encode_all(LETTER_TEXTS, dropout=0.1)


@pytest.mark.parametrize("texts", [[], [" "]])
def test_nothing_to_learn_from(texts):
    with refuses("texts", "no words"):
        Words.learn(texts)


@pytest.mark.parametrize(
    ("stored", "argument", "word"),
    [
        ({"unit": "words", "tokens": ["a", "a"]}, "vocabulary", "the token 'a' twice"),
        ({"unit": "words", "tokens": ["a", "b c"]}, "vocabulary", "the token 'b c'"),
        ({"unit": "words", "tokens": [""]}, "vocabulary", "the token ''"),
        ({"unit": "words", "tokens": ["a", 1]}, "vocabulary", "tokens that are not a list of strings"),
        ({"unit": "words", "tokens": "abc"}, "vocabulary", "tokens that are not a list of strings"),
        ({"unit": "words"}, "vocabulary", "JSON of something else"),
        ({"unit": "words", "tokens": [], "more": 1}, "vocabulary", "JSON of something else"),
        ({"unit": ["words"], "tokens": []}, "vocabulary", "JSON of something else"),
        ({"unit": "characters", "tokens": ["a"]}, "vocabulary", "JSON of something else"),
        (["a"], "vocabulary", "JSON of something else"),
    ],
)
def test_stored_tokens_are_checked(stored, argument, word):
    with refuses(argument, word):
        Words.from_bytes(json.dumps(stored).encode())


@pytest.mark.parametrize("data", [b"", b"[" * 100_000, b'"\xff"', b"NaN,", b'{"unit": "words", "tokens": ["\\ud800"]}'])
def test_data_that_are_no_vocabulary(data):
    with refuses("vocabulary"):
        Words.from_bytes(data)


@pytest.mark.parametrize("token", ["ab", "", "\t", "\u00a0"])
def test_a_character_is_one_and_no_other_blank(token):
    with refuses("vocabulary", "characters", "vocabulary"):
        Characters([token])


BPE_TEXTS = ["the lowest tower", "the newest tower", "a wider world", "the low new wide world"] * 20
SUBWORDS = BPE.learn(BPE_TEXTS, size=80)


def test_frequent_words_are_whole_and_rare_ones_are_not():
    assert SUBWORDS.pieces(SUBWORDS.encode("the tower")) == ["▁the", "▁tower"]
    assert len(SUBWORDS.encode("lowewower")) > 1


def test_no_more_than_asked_for_and_fewer_where_there_is_nothing_to_merge():
    assert len(BPE.learn(BPE_TEXTS, size=40)) == 40
    assert NUM_SPECIAL < len(BPE.learn(["ab ab"], size=1000)) < 20


def test_an_unknown_letter_does_not_cut_the_word():
    ids = SUBWORDS.encode("toẞer")
    assert UNKNOWN in ids
    assert SUBWORDS.decode(ids) == "to⁇er"
    assert SUBWORDS.word_indices(ids) == [0] * len(ids)


def test_spans_count_characters_not_bytes():
    subwords = BPE.learn(["größe 東京 😀 ok"] * 5, size=60)
    text = "ok 😀 größe 東京"
    covered = [text[start:end] for start, end in subwords.spans(text)]
    assert "".join(covered) == text.replace(" ", "")
    assert covered[0] == "ok"


def test_long_sentences_are_learnt_from():
    assert UNKNOWN not in BPE.learn(["a " * 5000 + "z"], size=20).encode("z")


def test_dropout_repeats_with_its_seed():
    plain = SUBWORDS.encode_all(BPE_TEXTS)
    first = SUBWORDS.encode_all(BPE_TEXTS, dropout=0.3, seed=5)
    assert first == SUBWORDS.encode_all(iter(BPE_TEXTS), dropout=0.3, seed=5)
    assert first != SUBWORDS.encode_all(BPE_TEXTS, dropout=0.3, seed=6)
    assert plain == SUBWORDS.encode_all(BPE_TEXTS)
    assert [SUBWORDS.decode(ids) for ids in first] == BPE_TEXTS
    assert len({tuple(ids) for ids in first}) > len({tuple(ids) for ids in plain})


def test_dropout_repeats_in_another_process():
    """A training that was interrupted goes on to the same bits."""
    script = (
        "import sys; from regard.translation.vocabulary import BPE; "
        "data = bytes.fromhex(sys.argv[1]); "
        "print(BPE.from_bytes(data).encode_all(sys.argv[2:], dropout=0.3, seed=5))"
    )
    call = [sys.executable, "-c", script, SUBWORDS.to_bytes().hex(), *BPE_TEXTS]
    there = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    assert there.strip() == str(SUBWORDS.encode_all(BPE_TEXTS, dropout=0.3, seed=5))


@pytest.mark.parametrize("seed", [-1, 2**32 - 1, 2**64])
def test_any_seed_will_do(seed):
    first, second = (SUBWORDS.encode_all(BPE_TEXTS, dropout=0.3, seed=seed) for _ in range(2))
    assert first == second


def test_all_dropped_is_letter_by_letter_and_none_is_plain():
    (letters,) = SUBWORDS.encode_all(["the tower"], dropout=1.0)
    assert SUBWORDS.pieces(letters) == list("▁the▁tower")
    longer = [
        sum(map(len, SUBWORDS.encode_all(BPE_TEXTS, dropout=dropout, seed=1))) for dropout in (0.0, 0.1, 0.4, 1.0)
    ]
    assert longer == sorted(set(longer))


@pytest.mark.parametrize("dropout", [-0.1, 1.1, float("nan")])
def test_dropout_is_a_probability(dropout):
    with refuses("dropout"):
        SUBWORDS.encode_all(BPE_TEXTS, dropout=dropout)


@pytest.mark.parametrize("texts", [[], ["", " "], ["▁"], ["\0"], ["▁ \0", "▁▁"], ["a ▅"]])
def test_a_text_without_anything_to_learn(texts):
    with refuses("texts", "training", "nothing", "learnt"):
        BPE.learn(texts, size=50)


def test_fewer_ids_than_characters():
    with refuses("size", "8", "at least 15, for the special tokens"):
        BPE.learn(["abcdefghij"], size=8)
    assert len(BPE.learn(["abcdefghij"], size=15)) == 15


def test_what_else_sentencepiece_refuses_is_told_in_its_words():
    with refuses("texts, size", "sentencepiece", "refuses"):
        BPE.learn(["abc"], size=-1)


def test_the_sign_of_the_unknown_is_learnt_as_a_character():
    subwords = BPE.learn([*BPE_TEXTS, "what is this ⁇"], size=80)
    again = BPE.from_bytes(subwords.to_bytes())
    ids = again.encode("is this ⁇")
    assert UNKNOWN not in ids
    assert again.decode(ids) == "is this ⁇"


def test_text_that_spells_a_symbol_is_learnt():
    text = "a <s>old</s> price <pad> <unk>"
    subwords = BPE.learn([*BPE_TEXTS, text], size=80)
    for dropout in (0.0, 0.5, 1.0):
        (ids,) = subwords.encode_all([text], dropout=dropout)
        assert min(ids) >= NUM_SPECIAL
        assert subwords.decode(ids) == text


def test_a_model_with_the_usual_names_of_the_symbols_is_still_read():
    again = BPE.from_bytes(trained({}))
    assert again.pieces(range(NUM_SPECIAL)) == SUBWORDS.pieces(range(NUM_SPECIAL))
    assert again.decode(again.encode("the tower")) == "the tower"


def test_quiet_and_without_files(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with refuses("vocabulary"):
        BPE.from_bytes(BPE.learn(BPE_TEXTS, size=60).to_bytes()[:-40] + b"\xff" * 40)
    assert capfd.readouterr() == ("", "")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "options",
    [{"pad_id": -1}, {"unk_id": 0, "pad_id": 1}, {"model_type": "unigram"}, {"add_dummy_prefix": False}],
)
def test_a_model_that_is_not_ours(options):
    with refuses("vocabulary", "sentencepiece", "model", "ours"):
        BPE.from_bytes(trained(options))


def trained(options):
    """What sentencepiece itself writes, with our numbers of the symbols unless the options say otherwise."""
    written = io.BytesIO()
    ours = {"model_type": "bpe", "pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3} | options
    ours |= {"normalization_rule_name": "identity", "minloglevel": 2, "hard_vocab_limit": False, "vocab_size": 40}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(BPE_TEXTS), model_writer=written, **ours)
    return written.getvalue()


def test_without_sentencepiece(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with refuses("unit bpe", "no module named", "regard[translation]"):
        BPE.learn(BPE_TEXTS)


CAT_TEXTS = ["a cat and a cab"] * 4


@pytest.mark.parametrize(("unit", "cls"), [("bpe", BPE), ("characters", Characters), ("words", Words)])
def test_by_name(unit, cls):
    learnt = learn_vocabulary(unit, CAT_TEXTS, 14)
    assert type(learnt) is cls
    assert type(load_vocabulary(unit, learnt.to_bytes())) is cls
    assert len(learnt) <= 14


@pytest.mark.parametrize("unit", ["bpe", "characters", "words"])
def test_room_for_more_than_the_symbols(unit):
    with refuses("size", "4", "more than 4"):
        learn_vocabulary(unit, CAT_TEXTS, 4)


def test_a_unit_that_is_not_there():
    with refuses("unit", "'bytes'", "'bpe'", "'characters'"):
        learn_vocabulary("bytes", CAT_TEXTS)
    with refuses("unit", "'bytes'"):
        load_vocabulary("bytes", b"")
