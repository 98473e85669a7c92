"""Subwords: what sentencepiece is asked for, dropout of merges, and models that are not ours."""

import io
import subprocess
import sys

import pytest
import sentencepiece
from tests.refuses import refuses

from regard.translation.symbols import COUNT, UNKNOWN
from regard.translation.vocabularies import Subwords

TEXTS = ["the lowest tower", "the newest tower", "a wider world", "the low new wide world"] * 20
SUBWORDS = Subwords.learn(TEXTS, size=80)


def test_frequent_words_are_whole_and_rare_ones_are_not():
    assert SUBWORDS.pieces(SUBWORDS.encode("the tower")) == ["▁the", "▁tower"]
    assert len(SUBWORDS.encode("lowewower")) > 1


def test_no_more_than_asked_for_and_fewer_where_there_is_nothing_to_merge():
    assert len(Subwords.learn(TEXTS, size=40)) == 40
    assert COUNT < len(Subwords.learn(["ab ab"], size=1000)) < 20


def test_an_unknown_letter_does_not_cut_the_word():
    ids = SUBWORDS.encode("toẞer")
    assert UNKNOWN in ids
    assert SUBWORDS.decode(ids) == "to⁇er"
    assert SUBWORDS.words(ids) == [0] * len(ids)


def test_spans_count_characters_not_bytes():
    subwords = Subwords.learn(["größe 東京 😀 ok"] * 5, size=60)
    text = "ok 😀 größe 東京"
    covered = [text[start:end] for start, end in subwords.spans(text)]
    assert "".join(covered) == text.replace(" ", "")
    assert covered[0] == "ok"


def test_long_sentences_are_learnt_from():
    assert UNKNOWN not in Subwords.learn(["a " * 5000 + "z"], size=20).encode("z")


def test_dropout_repeats_with_its_seed():
    plain = SUBWORDS.encode_all(TEXTS)
    first = SUBWORDS.encode_all(TEXTS, dropout=0.3, seed=5)
    assert first == SUBWORDS.encode_all(iter(TEXTS), dropout=0.3, seed=5)
    assert first != SUBWORDS.encode_all(TEXTS, dropout=0.3, seed=6)
    assert plain == SUBWORDS.encode_all(TEXTS)
    assert [SUBWORDS.decode(ids) for ids in first] == TEXTS
    assert len({tuple(ids) for ids in first}) > len({tuple(ids) for ids in plain})


def test_dropout_repeats_in_another_process():
    """A training that was interrupted goes on to the same bits."""
    script = (
        "import sys; from regard.translation.vocabularies.subwords import Subwords; "
        "data = bytes.fromhex(sys.argv[1]); "
        "print(Subwords.from_bytes(data).encode_all(sys.argv[2:], dropout=0.3, seed=5))"
    )
    call = [sys.executable, "-c", script, SUBWORDS.to_bytes().hex(), *TEXTS]
    there = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    assert there.strip() == str(SUBWORDS.encode_all(TEXTS, dropout=0.3, seed=5))


@pytest.mark.parametrize("seed", [-1, 2**32 - 1, 2**64])
def test_any_seed_will_do(seed):
    first, second = (SUBWORDS.encode_all(TEXTS, dropout=0.3, seed=seed) for _ in range(2))
    assert first == second


def test_all_dropped_is_letter_by_letter_and_none_is_plain():
    (letters,) = SUBWORDS.encode_all(["the tower"], dropout=1.0)
    assert SUBWORDS.pieces(letters) == list("▁the▁tower")
    longer = [sum(map(len, SUBWORDS.encode_all(TEXTS, dropout=dropout, seed=1))) for dropout in (0.0, 0.1, 0.4, 1.0)]
    assert longer == sorted(set(longer))


@pytest.mark.parametrize("dropout", [-0.1, 1.1, float("nan")])
def test_dropout_is_a_probability(dropout):
    with refuses("dropout"):
        SUBWORDS.encode_all(TEXTS, dropout=dropout)


@pytest.mark.parametrize("texts", [[], ["", " "], ["▁"], ["\0"], ["▁ \0", "▁▁"], ["a ▅"]])
def test_a_text_without_anything_to_learn(texts):
    with refuses("texts", "training", "nothing", "learnt"):
        Subwords.learn(texts, size=50)


def test_fewer_ids_than_characters():
    with refuses("size", "8", "at least 15, for the symbols"):
        Subwords.learn(["abcdefghij"], size=8)
    assert len(Subwords.learn(["abcdefghij"], size=15)) == 15


def test_what_else_sentencepiece_refuses_is_told_in_its_words():
    with refuses("texts, size", "sentencepiece", "refuses"):
        Subwords.learn(["abc"], size=-1)


def test_the_sign_of_the_unknown_is_learnt_as_a_character():
    subwords = Subwords.learn([*TEXTS, "what is this ⁇"], size=80)
    again = Subwords.from_bytes(subwords.to_bytes())
    ids = again.encode("is this ⁇")
    assert UNKNOWN not in ids
    assert again.decode(ids) == "is this ⁇"


def test_text_that_spells_a_symbol_is_learnt():
    text = "a <s>old</s> price <pad> <unk>"
    subwords = Subwords.learn([*TEXTS, text], size=80)
    for dropout in (0.0, 0.5, 1.0):
        (ids,) = subwords.encode_all([text], dropout=dropout)
        assert min(ids) >= COUNT
        assert subwords.decode(ids) == text


def test_a_model_with_the_usual_names_of_the_symbols_is_still_read():
    again = Subwords.from_bytes(trained({}))
    assert again.pieces(range(COUNT)) == SUBWORDS.pieces(range(COUNT))
    assert again.decode(again.encode("the tower")) == "the tower"


def test_quiet_and_without_files(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with refuses("vocabulary"):
        Subwords.from_bytes(Subwords.learn(TEXTS, size=60).to_bytes()[:-40] + b"\xff" * 40)
    assert capfd.readouterr() == ("", "")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "options",
    [{"pad_id": -1}, {"unk_id": 0, "pad_id": 1}, {"model_type": "unigram"}, {"add_dummy_prefix": False}],
)
def test_a_model_that_is_not_ours(options):
    with refuses("vocabulary", "sentencepiece", "model", "ours"):
        Subwords.from_bytes(trained(options))


def trained(options):
    """What sentencepiece itself writes, with our numbers of the symbols unless the options say otherwise."""
    written = io.BytesIO()
    ours = {"model_type": "bpe", "pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3} | options
    ours |= {"normalization_rule_name": "identity", "minloglevel": 2, "hard_vocab_limit": False, "vocab_size": 40}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS), model_writer=written, **ours)
    return written.getvalue()


def test_without_sentencepiece(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with refuses("unit bpe", "no module named", "regard[translation]"):
        Subwords.learn(TEXTS)
