"""The contract of tokenizers: every unit that `regard train` offers, through the models that it writes."""

import hashlib
import itertools
import json
import shutil
import typing
import unicodedata

import pytest
from tests.contracts.command import run, train
from tests.refuses import refuses

from regard import RegardError
from regard.translation import Translator
from regard.translation.recipe import Data

pytestmark = pytest.mark.cpu

UNITS = typing.get_args(typing.get_type_hints(Data)["source_unit"])
SIDES = ("source", "target")
SOURCES = ["the old cat sat", "a cat, an old hat", "größe 東京 😀", "l'été & <b> [c]", "the hat sat", "a b a b"]
TARGETS = ["die alte Katze saß", "Größe", "ein Hut", "été 東京", "x 😀 y", "«a» – b"]
PAIRS = list(zip(SOURCES, TARGETS, strict=True)) * 5
SYMBOLS = 4
"""Ids of padding, of what is unknown, of the beginning and of the end; those of the text follow."""


def options(unit, size=None):
    size = (90 if unit == "bpe" else 1000) if size is None else size
    return ["--source-unit", unit, "--target-unit", unit, "--vocabulary-size", size]


@pytest.fixture(scope="module", params=UNITS)
def unit(request):
    return request.param


@pytest.fixture(scope="module")
def folder(unit, tmp_path_factory):
    return train(tmp_path_factory.mktemp("models") / unit, PAIRS, *options(unit))


@pytest.fixture(scope="module")
def vocabularies(folder):
    """That of the source with the texts it was learnt from, and that of the target."""
    translator = Translator.load(folder)
    return [(translator.source_vocabulary, SOURCES), (translator.target_vocabulary, TARGETS)]


def test_help_offers_every_unit(capsys):
    assert run("train", "--help") == 0
    shown = capsys.readouterr().out
    for side in SIDES:
        description = shown.partition(f"--{side}-unit")[2].partition("--vocabulary-size")[0]
        assert all(unit in description for unit in UNITS)


# --- From text to ids and back ---------------------------------------------------------------------------------------


def test_text_of_the_training_data_comes_back(vocabularies):
    for vocabulary, texts in vocabularies:
        for text in texts:
            ids = vocabulary.encode(text)
            assert vocabulary.decode(ids) == text
            assert all(SYMBOLS <= token < len(vocabulary) for token in ids)


def test_new_sentences_of_known_words_come_back(vocabularies):
    for vocabulary, texts in vocabularies:
        words = sorted({word for text in texts for word in text.split()})
        for first, second in itertools.pairwise(words):
            assert vocabulary.decode(vocabulary.encode(f"{first} {second} {first}")) == f"{first} {second} {first}"


def test_all_at_once_is_one_by_one(vocabularies):
    for vocabulary, texts in vocabularies:
        assert vocabulary.encode_all(texts) == [vocabulary.encode(text) for text in texts]


def test_empty_text_has_no_ids(vocabularies, folder):
    for vocabulary, _ in vocabularies:
        for empty in ("", " ", "\t \n"):
            assert vocabulary.encode(empty) == []
        assert vocabulary.decode([]) == ""
        assert vocabulary.pieces([]) == vocabulary.word_indices([]) == vocabulary.spans("") == []
    (translation,) = Translator.load(folder).translate([" "])
    assert (translation.text, translation.tokens, translation.score) == ("", (), 0.0)


def test_white_space_and_composed_characters_have_one_form(vocabularies):
    for vocabulary, texts in vocabularies:
        for text in texts:
            spaced = "  " + text.replace(" ", " \t ") + "\n"
            assert vocabulary.encode(spaced) == vocabulary.encode(text)
            assert vocabulary.encode(unicodedata.normalize("NFD", text)) == vocabulary.encode(text)


def test_unknown_text_is_shown_as_unknown_and_its_neighbours_stay(unit, vocabularies):
    for vocabulary, texts in vocabularies:
        word = texts[0].split()[0]
        unknown = "ЖЖЖ"
        said = vocabulary.decode(vocabulary.encode(f"{word} {unknown} {word}"))
        first, *between, last = said.split()
        assert (first, last) == (word, word)
        assert set("".join(between)) == {"⁇"}
        assert unknown not in said
        ids = vocabulary.encode(f"{word} {unknown} {word}")
        assert vocabulary.decode(vocabulary.encode(unknown)).strip("⁇") == ""
        if unit == "words":
            assert len(ids) == 3
        assert vocabulary.word_indices(ids)[0] == 0
        assert vocabulary.word_indices(ids)[-1] == max(vocabulary.word_indices(ids))


def test_symbols_are_no_text(vocabularies):
    for vocabulary, texts in vocabularies:
        ids = vocabulary.encode(texts[0])
        assert vocabulary.pieces(range(SYMBOLS)) == ["<pad>", "⁇", "<s>", "</s>"]
        assert vocabulary.decode([2, *ids, 3, 0, 0]) == texts[0]
        assert vocabulary.word_indices([2, *ids, 3, 0]) == [-1, *vocabulary.word_indices(ids), -1, -1]


def test_text_that_spells_a_symbol_is_text(vocabularies):
    for vocabulary, _ in vocabularies:
        for symbol in ("<pad>", "</s>", "<s>"):
            assert all(token == 1 or token >= SYMBOLS for token in vocabulary.encode(symbol))


def test_id_that_does_not_exist_is_refused(vocabularies):
    for vocabulary, _ in vocabularies:
        for ids in ([len(vocabulary)], [4, -1]):
            for ask in (vocabulary.decode, vocabulary.pieces, vocabulary.word_indices):
                with pytest.raises(RegardError):
                    ask(ids)


def test_half_of_a_character_is_refused(folder):
    with refuses("text", "half of a character"):
        Translator.load(folder).translate(["\ud800"])


# --- Pieces, words and spans -----------------------------------------------------------------------------------------


def test_pieces_spell_the_text(unit, vocabularies):
    for vocabulary, texts in vocabularies:
        for text in texts:
            pieces = vocabulary.pieces(vocabulary.encode(text))
            if unit == "words":
                assert pieces == text.split()
            elif unit == "characters":
                assert pieces == list(text.replace(" ", "▁"))
            else:
                assert "".join(pieces) == "▁" + text.replace(" ", "▁")
                assert len(pieces) <= len(text) + 1
    if unit == "bpe":  # frequent words are whole
        vocabulary, _ = vocabularies[0]
        assert vocabulary.pieces(vocabulary.encode("cat sat")) == ["▁cat", "▁sat"]


def test_each_token_belongs_to_the_word_it_spells(vocabularies):
    for vocabulary, texts in vocabularies:
        for text in texts:
            ids = vocabulary.encode(text)
            spelled = {}
            for piece, word in zip(vocabulary.pieces(ids), vocabulary.word_indices(ids), strict=True):
                spelled[word] = spelled.get(word, "") + piece.replace("▁", "")
            assert [spelled[number] for number in sorted(spelled)] == text.split()


def test_spans_are_the_characters_of_each_token(vocabularies):
    for vocabulary, texts in vocabularies:
        for text in texts:
            spans = vocabulary.spans(text)
            pieces = vocabulary.pieces(vocabulary.encode(text))
            assert len(spans) == len(pieces)
            for (start, end), piece in zip(spans, pieces, strict=True):
                assert text[start:end].strip() == piece.replace("▁", "")
            assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
            covered = {place for start, end in spans for place in range(start, end)}
            assert {place for place, sign in enumerate(text) if sign != " "} <= covered


# --- Learning and saving ---------------------------------------------------------------------------------------------


def encoded(folder):
    translator = Translator.load(folder)
    return [
        [vocabulary.encode(text) for text in SOURCES + TARGETS]
        for vocabulary in (translator.source_vocabulary, translator.target_vocabulary)
    ]


def test_loaded_vocabulary_gives_the_same_ids(vocabularies, folder, tmp_path):
    copied = shutil.copytree(folder, tmp_path / "copy")
    expected = [[vocabulary.encode(text) for text in SOURCES + TARGETS] for vocabulary, _ in vocabularies]
    assert encoded(copied) == encoded(folder) == expected


def test_vocabulary_does_not_depend_on_the_seed_of_the_weights(unit, folder, tmp_path):
    again = train(tmp_path / "again", PAIRS, *options(unit), "--seed", 2)
    for side in SIDES:
        name = f"{side}.vocabulary"
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_joint_vocabulary_is_one_for_both_sides(unit, tmp_path):
    folder = train(tmp_path / "joint", PAIRS, *options(unit, 150), "--joint")
    translator = Translator.load(folder)
    source, target = translator.source_vocabulary, translator.target_vocabulary
    assert len(source) == len(target)
    for text in SOURCES + TARGETS:
        assert source.encode(text) == target.encode(text)
        assert source.decode(source.encode(text)) == text


def test_vocabulary_has_no_more_ids_than_asked_for(unit, tmp_path):
    size = {"bpe": 60, "characters": 12, "words": 8}[unit]
    translator = Translator.load(train(tmp_path / "few", PAIRS, *options(unit, size)))
    for vocabulary in (translator.source_vocabulary, translator.target_vocabulary):
        assert len(vocabulary) <= size
    if unit != "bpe":  # the most frequent come first, and the others are unknown
        assert translator.source_vocabulary.decode(translator.source_vocabulary.encode("a")) == "a"
        assert "⁇" in translator.source_vocabulary.decode(translator.source_vocabulary.encode("東京"))


def test_units_of_source_and_target_may_differ(tmp_path):
    folder = train(tmp_path / "mixed", PAIRS, "--source-unit", "words", "--target-unit", "characters")
    translator = Translator.load(folder)
    assert translator.source_vocabulary.pieces(translator.source_vocabulary.encode("the hat")) == ["the", "hat"]
    assert translator.target_vocabulary.pieces(translator.target_vocabulary.encode("ein")) == ["e", "i", "n"]
    (translation,) = translator.translate(["the hat sat"], longest=5)
    assert translation.source.text == "the hat sat"
    assert set(translation.text) <= set("".join(TARGETS)) | {"⁇"}


# --- Damage ----------------------------------------------------------------------------------------------------------


def other_unit(unit):
    return "words" if unit == "characters" else "characters"


def listed(unit, tokens):
    return json.dumps({"unit": unit, "tokens": tokens}).encode()


DAMAGE = {
    "empty": lambda data, unit: b"",
    "cut": lambda data, unit: data[: len(data) // 2],
    "one byte more": lambda data, unit: data + b"\0",
    "one bit": lambda data, unit: data[:10] + bytes([data[10] ^ 1]) + data[11:],
    "zeros": lambda data, unit: bytes(len(data)),
    "text": lambda data, unit: b"hello\n",
    "number": lambda data, unit: b"42",
    "nested": lambda data, unit: b"[" * 10_000,
    "no tokens": lambda data, unit: json.dumps({"unit": unit}).encode(),
    "tokens of numbers": lambda data, unit: listed(unit, [1, 2, 3]),
    "token twice": lambda data, unit: listed(unit, ["a", "a"]),
    "half of a character": lambda data, unit: listed(unit, ["a", "\ud800"]),
    "another unit": lambda data, unit: listed(other_unit(unit), ["a", "b"]),
}


# With a digest of its own, a file whose letters changed is a vocabulary of other letters.
CASES = [(damage, False) for damage in DAMAGE] + [(damage, True) for damage in DAMAGE if "one" not in damage]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("damage", "is_forged"), CASES)
def test_damaged_vocabulary_is_refused(unit, folder, tmp_path, side, damage, is_forged):
    """Also where size and digest of the page were changed with the file."""
    broken = shutil.copytree(folder, tmp_path / "broken")
    file = broken / f"{side}.vocabulary"
    data = DAMAGE[damage](file.read_bytes(), unit)
    file.write_bytes(data)
    if is_forged:
        page = json.loads((broken / "model.json").read_text(encoding="utf-8"))
        page["files"][file.name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (broken / "model.json").write_text(json.dumps(page), encoding="utf-8")
    with pytest.raises(RegardError) as refusal:
        Translator.load(broken)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["source.vocabulary", "target.vocabulary", "model.json", "model.safetensors"])
def test_missing_file_is_named(folder, tmp_path, name):
    broken = shutil.copytree(folder, tmp_path / "broken")
    (broken / name).unlink()
    with pytest.raises(RegardError, match=name.replace(".", r"\.")):
        Translator.load(broken)


def test_vocabulary_of_another_model_is_refused(unit, folder, tmp_path):
    broken = shutil.copytree(folder, tmp_path / "broken")
    shutil.copy(broken / "target.vocabulary", broken / "source.vocabulary")
    with pytest.raises(RegardError):
        Translator.load(broken)


@pytest.mark.parametrize("without_merges", [name for name in UNITS if name != "bpe"])
def test_dropout_of_merges_needs_subwords(without_merges, tmp_path, capsys):
    file = tmp_path / "pairs.tsv"
    file.write_text("a b\tc d\n" * 40, encoding="utf-8")
    given = ["--pairs", file, "--out", tmp_path / "model", "--bpe-dropout", 0.1, *options(without_merges)]
    assert run("train", *given) == 2
    assert "bpe_dropout" in capsys.readouterr().err
