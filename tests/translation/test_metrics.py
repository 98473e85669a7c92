"""Metrics are those of sacrebleu, with intervals; quality by length counts every sentence once."""

import sys

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from tests.refuses import refuses

from regard.translation.metrics import (
    MAX_GROUPS,
    TOKENIZERS,
    LengthGroup,
    by_length,
    effective_bleu,
    exact_match,
    looks_tokenised,
    score_systems,
)

REFERENCES = [f"the cat number {n} sat on the mat , did n't it ." for n in range(40)]
CLOSE = [text.replace("sat", "lay") if n % 4 == 0 else text for n, text in enumerate(REFERENCES)]
FAR = [text.replace("the", "a") for text in REFERENCES]


def test_the_numbers_are_sacrebleus():
    (bleu, chrf) = score_systems({"close": CLOSE}, REFERENCES, tokenize="none")["close"]
    expected = sacrebleu.BLEU(tokenize="none", force=True)
    assert bleu.score == pytest.approx(expected.corpus_score(CLOSE, [REFERENCES]).score)
    assert chrf.score == pytest.approx(sacrebleu.CHRF().corpus_score(CLOSE, [REFERENCES]).score)
    assert bleu.mean - bleu.half_width < bleu.score < bleu.mean + bleu.half_width
    assert "tok:none" in bleu.signature
    assert "bs:1000|seed:12345" in bleu.signature
    assert bleu.p_value is None
    low, high = bleu.mean - bleu.half_width, bleu.mean + bleu.half_width
    assert str(bleu) == f"{bleu.score:.2f} (95%: {low:.2f} to {high:.2f})"


def test_a_paired_bootstrap_tells_systems_apart():
    found = score_systems({"close": CLOSE, "far": FAR, "same": CLOSE}, REFERENCES)
    assert found["close"] == score_systems({"close": CLOSE}, REFERENCES)["close"]
    assert found["far"][0].p_value < 0.01
    assert [metric.p_value for metric in found["same"]] == [1.0, 1.0], "sacrebleu alone says 0.001"
    assert "p = 0.0010" in str(found["far"][0])


def test_every_tokenizer_works_here_and_now():
    for tokenize in TOKENIZERS:
        assert score_systems({"all": REFERENCES}, REFERENCES, tokenize=tokenize)["all"][0].score == 100


def test_short_sentences_have_a_bleu_too():
    assert effective_bleu(["seven"], ["seven"], "13a") == 100
    assert effective_bleu(["eight"], ["seven"], "13a") == 0


def test_tokenised_text_is_recognised():
    assert looks_tokenised(REFERENCES)
    assert not looks_tokenised(["The cat sat.", "It did ."])


def test_mistakes_are_explained():
    with refuses("tokenize", "'flores200'"):
        score_systems({"close": CLOSE}, REFERENCES, tokenize="flores200")
    with refuses("systems", "39", "40"):
        score_systems({"close": CLOSE[1:]}, REFERENCES)
    with refuses("pairs", "0 pairs of"):
        score_systems({"close": []}, [])


def test_without_sacrebleu_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with refuses("evaluate", "no module named sacrebleu", '"regard[translation]"'):
        score_systems({"close": CLOSE}, REFERENCES)


@given(st.lists(st.integers(0, 20_000), min_size=1, max_size=12))
def test_every_sentence_is_in_one_group(lengths):
    texts = [str(length) for length in lengths]
    groups = by_length(lengths, texts, texts)
    assert sum(group.count for group in groups) == len(lengths)
    assert len(groups) <= MAX_GROUPS
    assert len({group.last - group.first for group in groups}) == 1
    for group in groups:
        assert group.count == sum(group.first <= max(length, 1) <= group.last for length in lengths)
        assert (group.bleu, group.exact) == (100, 1)


def test_each_length_has_its_own_quality():
    lengths = [1, 1, 2, 30]
    said, meant = ["a", "b", "a b", "x y"], ["a", "a", "a b", "a b"]
    short, long = by_length(lengths, said, meant)
    assert (short.name, short.count, short.exact) == ("1-5", 3, 2 / 3)
    assert long == LengthGroup(26, 30, 1, 0.0, 0.0)
    assert [(group.name, group.count, group.exact) for group in by_length(lengths[:3], said[:3], meant[:3])] == [
        ("1", 2, 0.5),
        ("2", 1, 1.0),
    ]


def test_exact_is_to_the_letter():
    assert exact_match(["a", "A", "b "], ["a", "a", "b"]) == 1 / 3
