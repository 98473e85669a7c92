"""The contract of the search: translations of tiny models that have learnt nothing, judged by enumeration.

The judge reads log-probabilities from a call of the model on known words, and never from the search.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from tests.contracts.command import train
from tests.refuses import refuses

from regard import RegardError
from regard.translation import Translator

pytestmark = pytest.mark.cpu

UNKNOWN, BEGIN, END = 1, 2, 3
WORDS = ("da", "bo", "ku")
SOURCES = ("ab", "cd ab", "ab ab cd ef", "ef ef", "cd")
PAIRS = [(source, " ".join(WORDS)) for source in SOURCES]
SHARED = [(f"{source} {' '.join(WORDS)}", f"{' '.join(WORDS)} {source}") for source in SOURCES]

# Options of `regard train`, so that each kind of decoder is searched.
MODELS = {
    "additive": [],
    "none": ["--attention", "none"],
    "lstm": ["--unit", "lstm", "--cell", "conditional", "--attention", "scaled_dot", "--heads", "2", "--layers", "2"],
    "tied": ["--tied", "--attention", "gaussian"],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model folder of each kind, and another one of the first kind with other weights."""
    at = tmp_path_factory.mktemp("models")
    words = ["--source-unit", "words", "--target-unit", "words"]
    kinds = {**MODELS, "other seed": ["--seed", "5"]}
    return {kind: train(at / kind.replace(" ", "-"), PAIRS, *words, *options) for kind, options in kinds.items()}


def load(*folders):
    """A translator with large weights, whose models say something else of every sentence."""
    translator = Translator.load(*folders)
    with torch.no_grad():
        for loaded in translator.models:
            for parameter in loaded.model.parameters():
                parameter.mul_(5.0)
    return translator


@pytest.fixture(scope="module", params=MODELS)
def translator(request, folders):
    return load(folders[request.param])


@pytest.fixture(scope="module")
def ensemble(folders):
    return load(folders["additive"], folders["other seed"])


# --- The judge -------------------------------------------------------------------------------------------------------


def log_probabilities(translator, source, targets):
    """log p of every possible next word after each word of the targets, (targets, words + 1, vocabulary).

    targets: lists of words of one length. Several models give the mean of their probabilities.
    """
    ids = [*translator.source_vocabulary.encode(source), END]
    count = len(targets)
    previous = torch.tensor([[BEGIN, *words] for words in targets])
    each = []
    with torch.no_grad():
        for loaded in translator.models:
            logits = loaded.model(torch.tensor([ids] * count), torch.tensor([len(ids)] * count), previous)
            each.append(logits.double().softmax(-1).numpy())
    return np.log(np.mean(each, axis=0))


def totals(translator, source, targets, *, finished):
    """The log-probability of each target, and of END after it where they are finished."""
    steps = log_probabilities(translator, source, targets)
    written = [[*words, END] if finished else words for words in targets]
    return [
        math.fsum(step[place, word] for place, word in enumerate(words))
        for step, words in zip(steps, written, strict=True)
    ]


def total(translator, source, words, *, finished):
    """The same of one target."""
    return totals(translator, source, [words], finished=finished)[0]


def writable(translator):
    """Every word that a search may write, END apart: neither padding nor the beginning."""
    return [UNKNOWN, *range(END + 1, len(translator.target_vocabulary))]


def everything(translator, source, longest, strength, shortest=0):
    """Every translation of at most `longest` tokens as (score, log-probability, words, finished), the best first."""
    found = []
    for count in range(longest + 1):
        finished = count < longest
        length = count + finished
        if finished and length < shortest:
            continue
        targets = list(itertools.product(writable(translator), repeat=count))
        for words, number in zip(targets, totals(translator, source, targets, finished=finished), strict=True):
            found.append((number / ((5 + length) / 6) ** strength, number, words, finished))
    # Those that the model ended come first.
    return sorted(found, key=lambda one: (not one[3], -one[0]))


def told(translation):
    return [(one.target.ids, one.finished) for one in (translation, *translation.others)]


# --- Greedy search and beams -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shortest", [0, 4])
def test_one_beam_writes_the_most_probable_word_each_time(translator, shortest):
    for source in SOURCES:
        words, finished = [], False
        while len(words) < 7 and not finished:
            scores = log_probabilities(translator, source, [words])[0, -1]
            allowed = [*writable(translator), *([END] if len(words) + 1 >= shortest else [])]
            word = max(allowed, key=lambda one: scores[one])
            finished = word == END
            words += [] if finished else [word]
        (found,) = translator.translate([source], beams=1, longest=7, shortest=shortest)
        assert (list(found.target.ids), found.finished) == (words, finished)
        assert found.log_probability == pytest.approx(total(translator, source, words, finished=finished), abs=1e-4)


@pytest.mark.parametrize("strength", [0.0, 1.0, 2.5])
def test_wide_beam_finds_every_short_translation_in_order(translator, strength):
    for source in SOURCES[:3]:
        expected = everything(translator, source, 3, strength)
        (found,) = translator.translate([source], beams=200, nbest=200, longest=3, length_penalty=strength)
        assert told(found) == [(words, finished) for _, _, words, finished in expected]
        for one, (score, log_probability, _, _) in zip((found, *found.others), expected, strict=True):
            assert one.score == pytest.approx(score, abs=1e-4)
            assert one.log_probability == pytest.approx(log_probability, abs=1e-4)


def test_wide_beam_of_an_ensemble_finds_every_short_translation_in_order(ensemble):
    for source in SOURCES[:3]:
        expected = everything(ensemble, source, 3, 1.0)
        (found,) = ensemble.translate([source], beams=200, nbest=200, longest=3, length_penalty=1.0)
        assert told(found) == [(words, finished) for _, _, words, finished in expected]
        assert found.log_probability == pytest.approx(expected[0][1], abs=1e-4)


def test_short_translations_are_left_out_of_a_wide_beam(translator):
    expected = everything(translator, SOURCES[0], 4, 1.0, shortest=3)
    (found,) = translator.translate([SOURCES[0]], beams=800, nbest=20, longest=4, shortest=3, length_penalty=1.0)
    assert told(found) == [(words, finished) for _, _, words, finished in expected[:20]]


def test_wider_beam_finds_no_worse_translation_of_short_sentences(translator):
    best = [everything(translator, source, 3, 0.0)[0][0] for source in SOURCES]
    for beams in (1, 2, 5):
        found = translator.translate(SOURCES, beams=beams, longest=3, length_penalty=0.0)
        finished = [(one.score, most) for one, most in zip(found, best, strict=True) if one.finished]
        assert all(score <= most + 1e-4 for score, most in finished)


# --- Batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beams", [1, 3])
def test_batch_mates_and_padding_change_nothing(translator, beams):
    options = {"beams": beams, "nbest": min(beams, 2), "shortest": 4, "longest": 9}
    alone = [translator.translate([source], **options)[0] for source in SOURCES]
    assert len({one.text for one in alone}) > 1, "a model that always says the same would show nothing"
    for sources, order in (
        (SOURCES, range(len(SOURCES))),
        (SOURCES[::-1], range(len(SOURCES))[::-1]),
        ([*SOURCES, "ab cd ef ab cd ef ab cd ef"], range(len(SOURCES))),
    ):
        for size in (1, 3, 64):
            found = translator.translate(sources, batch_size=size, **options)
            for one, place in zip(found, order, strict=False):
                expected = alone[place]
                assert told(one) == told(expected)
                assert one.score == pytest.approx(expected.score, abs=1e-4)
                if one.weights is not None:
                    torch.testing.assert_close(one.weights, expected.weights, rtol=0, atol=1e-5)


def test_stream_gives_the_translations_of_a_list(translator):
    expected = translator.translate(SOURCES, longest=6)
    for ahead in (1, 2, 100):
        found = list(translator.stream(iter(SOURCES), longest=6, ahead=ahead))
        assert [told(one) for one in found] == [told(one) for one in expected]


def test_empty_sentence_has_an_empty_translation(translator):
    found = translator.translate(["", "ab", "  "], longest=5)
    assert [found[0].text, found[2].text] == ["", ""]
    assert (found[0].score, found[0].log_probability, found[0].finished) == (0.0, 0.0, True)
    assert told(found[1]) == told(translator.translate(["ab"], longest=5)[0])
    assert translator.translate([]) == []


# --- n-best, lengths, scores -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_n_best_are_different_and_sorted_and_have_the_scores_of_the_model(translator, strength):
    for source, best in zip(
        SOURCES, translator.translate(SOURCES, beams=7, nbest=5, longest=6, length_penalty=strength), strict=True
    ):
        every = (best, *best.others)
        assert len(every) == 5
        assert len({one.target.ids for one in every}) == 5
        order = [(not one.finished, -one.score) for one in every]
        assert order == sorted(order)
        for one in every:
            expected = total(translator, source, one.target.ids, finished=one.finished)
            assert one.log_probability == pytest.approx(expected, abs=1e-4)
            assert one.score == pytest.approx(expected / ((5 + one.length) / 6) ** strength, abs=1e-4)
            assert one.length == len(one.target.ids) + one.finished
            assert one.source.text == source


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("longest", [1, 2, 5])
def test_no_translation_is_longer_than_the_longest(translator, beams, longest):
    for best in translator.translate(SOURCES, beams=beams, nbest=min(beams, 3), longest=longest):
        for one in (best, *best.others):
            assert one.length <= longest
            assert one.finished or one.length == longest


@pytest.mark.parametrize("beams", [1, 4])
def test_no_translation_is_shorter_than_the_shortest(translator, beams):
    for one in translator.translate(SOURCES, beams=beams, shortest=11, longest=13):
        assert 11 <= one.length <= 13


def test_longest_length_without_a_limit_follows_the_source(translator):
    for source, one in zip(SOURCES, translator.translate(SOURCES, shortest=1), strict=True):
        assert one.length <= 2 * (len(source.split()) + 1) + 10


def test_known_translations_have_the_log_probability_of_the_model(translator):
    targets = ["da", "bo ku", "", "ku da bo bo", "da da"]
    given = translator.force(SOURCES, targets)
    scores = translator.score(SOURCES, targets, batch_size=2)
    tokens = 0
    for source, target, one, score in zip(SOURCES, targets, given, scores, strict=True):
        words = translator.target_vocabulary.encode(target)
        expected = total(translator, source, words, finished=True)
        assert one.log_probability == pytest.approx(expected, abs=1e-4)
        assert score == pytest.approx(expected, abs=1e-4)
        tokens += len(words) + 1
    assert translator.perplexity(SOURCES, targets) == pytest.approx(math.exp(-math.fsum(scores) / tokens), rel=1e-4)


def test_stronger_length_penalty_does_not_shorten_translations(translator):
    lengths = [
        sum(one.length for one in translator.translate(SOURCES, beams=200, longest=4, length_penalty=strength))
        for strength in (-1.0, 0.0, 1.0, 4.0)
    ]
    assert lengths == sorted(lengths)


# --- Alignments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beams", [1, 3])
def test_each_step_has_weights_over_the_source_that_sum_to_1(folders, beams):
    for kind in MODELS:
        found = load(folders[kind]).translate(SOURCES, beams=beams, nbest=min(beams, 2), longest=6)
        for best in found:
            for one in (best, *best.others):
                if kind == "none":
                    assert one.weights is None
                    assert one.alignment is None
                    continue
                assert one.weights.shape == (one.length, len(one.source.ids) + 1)
                assert (one.weights >= 0).all()
                torch.testing.assert_close(one.weights.sum(-1), torch.ones(one.length))


def test_weights_of_a_search_are_those_of_its_words_given(translator):
    found = [one for one in translator.translate(SOURCES, beams=4, shortest=3, longest=9) if one.finished]
    given = translator.force([one.source.text for one in found], [one.text for one in found])
    for one, again in zip(found, given, strict=True):
        if one.target.ids == again.target.ids:  # a text may spell what is unknown
            assert again.log_probability == pytest.approx(one.log_probability, abs=1e-4)
            if one.weights is not None:
                torch.testing.assert_close(again.weights, one.weights, rtol=0, atol=1e-5)


def test_alignment_has_a_row_for_each_word_of_the_translation(folders):
    (found,) = load(folders["additive"]).translate(["ab ab cd ef"], shortest=4, longest=9)
    alignment = found.alignment
    assert list(alignment.source_words) == ["ab", "ab", "cd", "ef"]
    assert list(alignment.target_words) == found.text.split()
    np.testing.assert_allclose(
        np.asarray(alignment.weights), found.weights[: len(found.target.ids), :4].numpy(), rtol=0, atol=1e-6
    )


# --- Ensembles -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3])
def test_ensemble_of_one_model_is_that_model(folders, count):
    for kind in MODELS:
        alone, several = load(folders[kind]), load(*[folders[kind]] * count)
        for beams in (1, 3):
            options = {"beams": beams, "nbest": min(beams, 2), "longest": 6}
            ours, theirs = alone.translate(SOURCES, **options), several.translate(SOURCES, **options)
            assert [told(one) for one in theirs] == [told(one) for one in ours]
            for one, other in zip(ours, theirs, strict=True):
                assert other.score == pytest.approx(one.score, abs=1e-4)
                if one.weights is not None:
                    torch.testing.assert_close(other.weights, one.weights, rtol=0, atol=1e-5)


def test_ensemble_scores_with_the_mean_of_probabilities(ensemble):
    targets = ["da", "bo ku", "", "ku da bo bo", "da da"]
    expected = [
        total(ensemble, source, ensemble.target_vocabulary.encode(target), finished=True)
        for source, target in zip(SOURCES, targets, strict=True)
    ]
    assert ensemble.score(SOURCES, targets) == pytest.approx(expected, abs=1e-4)


def test_models_of_an_ensemble_share_their_vocabularies(folders, tmp_path):
    other = train(tmp_path / "other", SHARED, "--source-unit", "words", "--target-unit", "words")
    with refuses("models", "model 2"):
        Translator.load(folders["additive"], other)


# --- State and refusals ----------------------------------------------------------------------------------------------


def test_search_does_not_change_the_model(folders):
    translator = load(folders["additive"])
    before = {name: tensor.clone() for name, tensor in translator.models[0].model.state_dict().items()}
    first = translator.translate(SOURCES, longest=6)
    again = translator.translate(SOURCES, longest=6)
    assert [told(one) for one in first] == [told(one) for one in again]
    assert [one.score for one in first] == [one.score for one in again]
    for name, tensor in translator.models[0].model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_model_in_training_mode_translates_without_dropout_and_stays_in_training_mode(folders):
    translator = load(folders["additive"])
    expected = translator.translate(SOURCES, longest=6)
    translator.models[0].model.train()
    assert [told(one) for one in translator.translate(SOURCES, longest=6)] == [told(one) for one in expected]
    assert translator.models[0].model.training


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"beams": 0}, "beams"),
        ({"beams": 2.5}, "beams"),
        ({"beams": 2, "nbest": 3}, "nbest"),
        ({"nbest": 0}, "nbest"),
        ({"longest": 0}, "longest"),
        ({"shortest": 5, "longest": 3}, "longest"),
        ({"shortest": -1}, "shortest"),
        ({"batch_size": 0}, "batch_size"),
        ({"length_penalty": math.nan}, "length_penalty"),
        ({"length_penalty": "long"}, "length_penalty"),
    ],
    ids=str,
)
def test_wrong_option_of_a_search_is_refused(folders, options, argument):
    with refuses(argument):
        Translator.load(folders["additive"]).translate(["ab"], **options)


@pytest.mark.parametrize("sentences", ["ab cd", ["ab", None], [b"ab"], None, 5], ids=repr)
def test_sentences_are_a_list_of_strings(folders, sentences):
    with pytest.raises(RegardError, match="sentences"):
        Translator.load(folders["additive"]).translate(sentences)
