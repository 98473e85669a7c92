"""The quality of a model on validation pairs, and the length penalty that suits it."""

import math

import pytest
from tests.refuses import refuses
from tests.translation.models import random_model, random_sentences

from regard.translation.dataset import Pair
from regard.translation.metrics import effective_bleu
from regard.translation.text import normalise
from regard.translation.translator import Sentence, Translation, Translator
from regard.translation.validation import (
    MAX_LOSS,
    STRENGTHS,
    best_length_penalty,
    check_loss,
    cross_entropy,
    sample_translation,
    validate,
)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 2 * MAX_LOSS])
def test_loss_that_is_not_a_number_or_too_large_is_refused(loss):
    with refuses("learning_rate", "on the validation pairs: the training has diverged"):
        check_loss(loss, "validation")


@pytest.mark.parametrize("loss", [0.0, 10.0, MAX_LOSS])
def test_finite_loss_is_accepted(loss):
    check_loss(loss, "training")


@pytest.fixture(scope="module")
def loaded():
    return random_model()


def pairs_of(loaded, count=12):
    """Half of the targets are what the model says."""
    sources = random_sentences(count, longest=9)
    said = [one.text for one in Translator([loaded]).translate(sources, beams=1)]
    return [
        Pair(source, text if row % 2 else "ab") for row, (source, text) in enumerate(zip(sources, said, strict=True))
    ]


def test_what_is_measured(loaded):
    pairs = pairs_of(loaded)
    found = validate(loaded, pairs, "13a")
    assert found.exact == 50.0
    said = [one.text for one in Translator([loaded]).translate([pair.source for pair in pairs], beams=1)]
    assert found.bleu == pytest.approx(effective_bleu(said, [pair.target for pair in pairs], "13a"))
    assert found.loss == pytest.approx(cross_entropy(loaded, pairs))
    assert 0 < found.flatness < 1


def test_the_loss_is_the_logarithm_of_the_perplexity(loaded):
    pairs = pairs_of(loaded)
    sides = [pair.source for pair in pairs], [pair.target for pair in pairs]
    assert math.exp(cross_entropy(loaded, pairs)) == pytest.approx(Translator([loaded]).perplexity(*sides), rel=1e-5)


def test_weights_that_have_run_away_are_named_before_anything_is_translated():
    broken = random_model(scale=math.inf)
    with refuses("learning_rate", "validation", "pairs", "loss"):
        validate(broken, [Pair("ab", "ab")], "13a")


def test_pairs_that_are_normalised_already_stay_as_they_are():
    texts = ("a", "&lt;", "<")
    model = random_model(texts=texts)
    as_written, as_read = Pair("a", "&amp;lt;"), Pair("a", normalise("&amp;lt;"))
    assert sample_translation(model, [as_read]).target.text == "&lt;"
    assert validate(model, [as_read], "13a").loss == validate(model, [as_written], "13a").loss


def test_the_same_pair_is_shown_each_time(loaded):
    pairs = pairs_of(loaded)
    longest = max(pairs, key=lambda pair: len(pair.source))
    for model in (loaded, random_model(seed=9)):
        shown = sample_translation(model, pairs)
        assert (shown.source.text, shown.target.text) == (longest.source, longest.target)


def test_without_attention_nothing_is_said_of_it():
    found = validate(random_model(attention="none"), [Pair("ab", "ab")], "13a")
    assert found.flatness is None


def test_the_weakest_of_the_best_penalties_is_chosen(loaded, monkeypatch):
    words = loaded.target_vocabulary

    def candidate(text, log_probability):
        return Translation(
            Sentence("", (), words), Sentence(text, tuple(words.encode(text)), words), 0.0, log_probability
        )

    # The longer one is right, and is ranked first from some strength on.
    short, long = candidate("ab", -2.0), candidate("ab ab ab ab", -3.2)
    right = Translation(short.source, short.target, 0.0, -2.0, others=(long,))
    monkeypatch.setattr(Translator, "translate", lambda self, sources, **_: [right for _ in sources])
    found = best_length_penalty(loaded, [Pair("ab", "ab ab ab ab")], "13a")
    before = STRENGTHS[STRENGTHS.index(found) - 1]
    penalties = {
        strength: ((5 + 11 + 1) / 6) ** strength / ((5 + 2 + 1) / 6) ** strength for strength in (before, found)
    }
    assert penalties[found] > 3.2 / 2.0
    assert penalties[before] <= 3.2 / 2.0
