"""A translation depends on nothing but its sentence; what a translator cannot be given is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.refuses import refuses
from tests.translation.models import SENTENCES, random_model, random_sentences, save_model

from regard.translation import Translator
from regard.translation.batching import pad
from regard.translation.options import SearchOptions
from regard.translation.search import beam_search
from regard.translation.translator import (
    Sentence,
    Translation,
    check_same_vocabularies,
    check_texts,
    perplexity,
    usable_device,
)
from regard.translation.vocabulary import END, learn_vocabulary


@pytest.fixture(scope="module")
def translator():
    return Translator([random_model()])


def told(translations):
    return [[(one.text, one.finished) for one in (best, *best.others)] for best in translations]


def scores(translations):
    return torch.tensor([one.score for best in translations for one in (best, *best.others)])


def test_neither_batch_size_nor_mates_change_a_translation(translator):
    sentences = random_sentences(200)
    expected = translator.translate(sentences, nbest=3, longest=8, batch_size=64)
    for size in (1, 7):
        found = translator.translate(sentences, nbest=3, longest=8, batch_size=size)
        assert told(found) == told(expected)
        torch.testing.assert_close(scores(found), scores(expected), rtol=0, atol=3e-4)  # logits up to 100
    backwards = translator.translate(sentences[::-1], nbest=3, longest=8, batch_size=64)[::-1]
    assert told(backwards) == told(expected)
    assert len({text for (text, _), *_ in told(expected)}) > 20, "a model that says one thing would show nothing"


def test_one_beam_is_greedy_search(translator):
    sentences = [sentence for sentence in random_sentences(40) if sentence]
    found = translator.translate(sentences, beams=1, longest=8)
    for sentence, one in zip(sentences, found, strict=True):
        ids, lengths = pad([[*translator.source_vocabulary.encode(sentence), END]])
        state = translator.models[0].model.start(ids, lengths)
        options = SearchOptions(beams=1, length_penalty=1.0)
        step = translator.models[0].model.step
        ((expected,),) = beam_search(step, state, lengths, torch.tensor([8]), options)
        assert one.target.ids == expected.tokens
        assert one.score == pytest.approx(expected.score, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("beams", [1, 3])
def test_no_translation_is_shorter_than_the_shortest(translator, beams):
    sentences = [sentence for sentence in random_sentences(20) if sentence]
    free = translator.translate(sentences, beams=beams)
    held = translator.translate(sentences, beams=beams, shortest=40)
    assert min(one.length for one in free) < 40
    assert min(one.length for one in held) >= 40
    assert [one.length for one in translator.stream(sentences, beams=beams, shortest=40)] == [
        one.length for one in held
    ]


def test_a_translation_has_its_tokens_its_score_and_its_weights(translator):
    (found,) = translator.translate(["ab cd"], nbest=2, length_penalty=0.0)
    assert found.source.text == "ab cd"
    assert found.target.vocabulary.decode(found.target.ids) == found.text
    assert len(found.tokens) == len(found.target.ids) == found.length - found.finished
    assert found.score == found.log_probability >= found.others[0].score
    assert found.weights is not None
    assert found.weights.shape == (found.length, len("ab cd") + 1)
    torch.testing.assert_close(found.weights.sum(1), torch.ones(found.length))


def test_an_empty_sentence_has_an_empty_translation(translator):
    said = translator.translate(["", "ab", " \t ", "cd"])
    assert [said[0].text, said[2].text] == ["", ""]
    assert (said[0].score, said[0].finished, said[0].alignment) == (0.0, True, None)
    assert [said[1].text, said[3].text] == [one.text for one in translator.translate(["ab", "cd"])]
    assert translator.translate([]) == []


def test_sentences_are_normalised_as_in_training(translator):
    assert told(translator.translate(["  ab \t cd\n"])) == told(translator.translate(["ab cd"]))


def test_what_was_escaped_twice_is_still_escaped_once(translator):
    (found,) = translator.translate(["a &amp;lt; b"])
    (given,) = translator.force(["a &amp;lt; b"], ["b &amp;lt; a"])
    assert found.source.text == given.source.text == "a &lt; b"
    assert given.target.text == "b &lt; a"
    assert len(found.source.ids) == len(given.target.ids) == len("a &lt; b")


def test_numbers_of_numpy_are_numbers(translator):
    ours = {"beams": 3, "nbest": 2, "length_penalty": 0.5, "shortest": 2, "longest": 8, "batch_size": 7}
    theirs = {name: np.float32(value) if value == 0.5 else np.int64(value) for name, value in ours.items()}
    sentences = random_sentences(9)
    assert told(translator.translate(sentences, **theirs)) == told(translator.translate(sentences, **ours))
    assert told(translator.stream(sentences, **theirs, ahead=np.int64(4))) == told(translator.stream(sentences, **ours))


def test_a_stream_gives_what_a_list_gives_and_reads_no_further_than_it_must(translator):
    sentences = random_sentences(23, seed=1)
    read = []

    def coming():
        for sentence in sentences:
            read.append(sentence)
            yield sentence

    stream = translator.stream(coming(), ahead=5, longest=8)
    first = next(stream)
    assert len(read) == 5
    assert told([first, *stream]) == told(translator.translate(sentences, longest=8))


def test_given_translations_have_the_score_that_the_search_gave_them(translator):
    found = [one for one in translator.translate(random_sentences(60), length_penalty=0.0) if one.finished]
    assert len(found) > 5
    sources, targets = [one.source.text for one in found], [one.text for one in found]
    given = translator.force(sources, targets, batch_size=7)
    for one, again in zip(found, given, strict=True):
        if one.target.ids == again.target.ids:  # blanks at the ends are no part of a text
            assert again.log_probability == pytest.approx(one.log_probability, abs=1e-4)
            assert again.length == one.length
            torch.testing.assert_close(again.weights, one.weights, rtol=0, atol=1e-5)
    assert translator.score(sources, targets) == pytest.approx([one.log_probability for one in given], abs=1e-4)


def test_perplexity_counts_every_token_and_the_end(translator):
    sources, targets = ["ab", "cd a"], ["dab", "c"]
    total, tokens = sum(translator.score(sources, targets)), len("dab") + 1 + len("c") + 1
    assert translator.perplexity(sources, targets) == pytest.approx(math.exp(-total / tokens))


@pytest.mark.parametrize("log_probability", [-math.inf, -1e6])
def test_what_is_impossible_has_an_infinite_perplexity(translator, log_probability):
    (given,) = translator.force(["ab"], ["c"])
    assert perplexity([replace(given, log_probability=log_probability)]) == math.inf


def test_the_length_penalty_of_the_folder_is_the_default(tmp_path):
    sentences = random_sentences(40)
    stored = Translator.load(save_model(tmp_path, random_model(metadata={"length_penalty": 2.5})))
    plain = Translator([random_model()])
    assert (stored.length_penalty, plain.length_penalty) == (2.5, 1.0)
    ours = stored.translate(sentences, longest=12)
    assert told(ours) == told(plain.translate(sentences, longest=12, length_penalty=2.5))
    assert not torch.equal(scores(ours), scores(plain.translate(sentences, longest=12)))


def test_an_ensemble_of_a_model_with_itself_is_the_model(tmp_path):
    folder = save_model(tmp_path, random_model())
    sentences = random_sentences(20)
    alone, twice = Translator.load(folder), Translator.load(folder, folder)
    ours, theirs = alone.translate(sentences, longest=10), twice.translate(sentences, longest=10)
    assert told(ours) == told(theirs)
    torch.testing.assert_close(ours[0].weights, theirs[0].weights)


def test_an_ensemble_scores_with_the_mean_of_probabilities():
    first, second = random_model(1), random_model(2)
    every = [Translator(models).score(["ab"], [""])[0] for models in ([first], [second], [first, second])]
    assert math.exp(every[2]) == pytest.approx((math.exp(every[0]) + math.exp(every[1])) / 2, rel=1e-5)


def test_a_model_without_attention_has_no_alignment():
    (found,) = Translator([random_model(attention="none")]).translate(["ab"])
    assert found.weights is None
    assert found.alignment is None


@pytest.mark.parametrize(
    ("call", "argument", "word"),
    [
        (lambda t: t.translate("ab cd"), "sentences", "one string"),
        (lambda t: t.translate(["ab", None]), "sentences", "NoneType at number 1"),
        (lambda t: t.translate([b"ab"]), "sentences", "bytes at number 0"),
        (lambda t: next(t.stream([3.5])), "sentences", "float at number 0"),
        (lambda t: t.translate(None), "sentences", "NoneType"),
        (lambda t: t.translate(5), "sentences", "a list of sentences"),
        (lambda t: t.stream("ab"), "sentences", "one string"),
        (lambda t: t.stream(["ab"], ahead=0), "ahead", "from 1 to"),
        (lambda t: t.stream(["ab"], ahead=1.5), "ahead", "from 1 to"),
        (lambda t: t.stream(["ab"], beams=0), "beams", "0"),
        (lambda t: t.translate(["ab"], batch_size=0), "batch_size", "from 1 to"),
        (lambda t: t.translate(["ab"], batch_size=2.5), "batch_size", "2.5"),
        (lambda t: t.force(["ab"], ["ab"], batch_size=None), "batch_size", "None"),
        (lambda t: t.translate(["ab"], beams=0), "beams", "0"),
        (lambda t: t.translate([""], beams=0), "beams", "0"),
        (lambda t: t.translate(["ab"], beams=2.5), "beams", "2.5"),
        (lambda t: t.translate([], beams=1, nbest=4), "nbest", "4"),
        (lambda t: t.translate(["ab"], nbest=2.0), "nbest", "2.0"),
        (lambda t: t.translate(["ab"], shortest=10**9), "shortest", "1000000000"),
        (lambda t: t.translate(["ab"], shortest=1.5), "shortest", "1.5"),
        (lambda t: t.translate(["ab"], shortest=5, longest=3), "longest", "from 5"),
        (lambda t: t.translate(["ab"], beams=2, nbest=3), "nbest", "3"),
        (lambda t: t.translate(["ab"], longest=0), "longest", "0"),
        (lambda t: t.translate(["ab"], length_penalty=math.nan), "length_penalty", "a number"),
        (lambda t: t.translate(["\ud800"]), "text", "'\\ud800'"),
        (lambda t: t.score(["ab"], []), "targets", "0 for 1 sources"),
        (lambda t: t.perplexity([], []), "targets", "none"),
        (lambda t: Translator([]), "models", "none"),
    ],
)
def test_mistakes_are_explained(translator, call, argument, word):
    with refuses(argument, word):
        call(translator)


def test_models_of_an_ensemble_share_their_vocabularies():
    texts = (*SENTENCES, "xyz")
    with refuses("models", "model 2"):
        Translator([random_model(), random_model(texts=texts)])


def test_a_device_that_is_not_there_is_refused(tmp_path):
    folder = save_model(tmp_path, random_model())
    with refuses("device", "'abacus'"):
        Translator.load(folder, device="abacus")


def test_a_stored_length_penalty_that_is_none_is_refused(tmp_path):
    stored = Translator([random_model(metadata={"length_penalty": "long"})])
    with refuses("length_penalty", "'long'"):
        stored.translate(["ab"])


def test_a_model_in_training_mode_translates_without_dropout_and_stays_in_training_mode():
    loaded = random_model(embedding_dropout=0.5, state_dropout=0.5)
    expected = Translator([loaded]).translate(SENTENCES, longest=8)
    loaded.model.train()
    translator = Translator([loaded])
    assert told(translator.translate(SENTENCES, longest=8)) == told(expected)
    scores = translator.score(SENTENCES, SENTENCES)
    assert all(module.training for module in loaded.model.modules())
    assert translator.score(SENTENCES, SENTENCES) == scores


LETTERS = learn_vocabulary("characters", ["ab cd"])
WEIGHTS = torch.tensor(
    [
        [0.5, 0.3, 0.0, 0.1, 0.1],
        [0.1, 0.3, 0.2, 0.2, 0.2],
        [0.0, 0.0, 0.0, 0.0, 1.0],
    ]
)


def sentence(text):
    return Sentence(text, tuple(LETTERS.encode(text)), LETTERS)


def translation(target, weights, finished=True):
    return Translation(sentence("ab c"), sentence(target), -1.0, -2.0, finished, weights)


def test_words_add_up_their_tokens_and_the_end_is_unaligned():
    found = translation("cd", WEIGHTS).alignment
    assert found is not None
    assert (found.source_words, found.target_words) == (("ab", "c"), ("cd",))
    torch.testing.assert_close(found.weights, torch.tensor([[0.6, 0.25]]))
    torch.testing.assert_close(found.unaligned, torch.tensor([0.15]))


def test_an_unfinished_translation_has_no_row_for_the_end():
    whole, cut = translation("cd", WEIGHTS), translation("cd", WEIGHTS[:2], finished=False)
    assert (whole.length, cut.length) == (3, 2)
    assert whole.alignment is not None
    assert cut.alignment is not None
    torch.testing.assert_close(whole.alignment.weights, cut.alignment.weights)


def test_tokens_are_aligned_one_by_one():
    found = translation("cd", WEIGHTS).alignment_of_tokens
    assert found is not None
    assert (found.source_words, found.target_words) == (("a", "b", "▁", "c"), ("c", "d"))
    torch.testing.assert_close(found.weights, WEIGHTS[:2, :4])


def test_without_weights_there_is_nothing_to_tell():
    assert translation("cd", None).alignment is None
    assert translation("cd", None).alignment_of_tokens is None


def test_text_and_tokens_are_those_of_the_target():
    assert (translation("c d", None).text, translation("c d", None).tokens) == ("c d", ("c", "▁", "d"))


WORDS = learn_vocabulary("words", ["one two"])
ABC = learn_vocabulary("characters", ["one two"])


def sentence_of(text, vocabulary):
    return Sentence(text, tuple(vocabulary.encode(text)), vocabulary)


def test_words_are_shown_as_written_even_where_they_are_unknown():
    met = sentence_of("one three", WORDS)
    assert met.words == ("one", "three")
    assert met.pieces == ("one", "⁇")
    assert met.word_indices == (0, 1)


def test_letters_belong_to_their_words():
    met = sentence_of("on we", ABC)
    assert met.pieces == ("o", "n", "▁", "w", "e")
    assert met.word_indices == (0, 0, 1, 1, 1)


def test_where_the_vocabulary_sees_other_words_they_are_its_own():
    subwords = learn_vocabulary("bpe", ["one two three"], 20)
    met = sentence_of("one▁two", subwords)  # sentencepiece reads this sign as a blank
    assert met.words == ("one", "two")
    assert set(met.word_indices) == {0, 1}


def test_sentences_are_taken_one_by_one():
    def endless():
        yield "first"
        raise AssertionError("it was read ahead")

    assert next(check_texts("sentences", endless())) == "first"


@pytest.mark.parametrize(("given", "said"), [("ab", "one string"), ([None], "NoneType at number 0")])
def test_what_is_no_sentence_is_refused(given, said):
    with refuses("targets", said):
        list(check_texts("targets", given))


@pytest.mark.parametrize(("given", "said"), [("ab", "one string"), (None, "NoneType"), (5, "int")])
def test_what_holds_no_sentences_is_refused_before_one_is_asked_for(given, said):
    with refuses("targets", said, "a list of sentences"):
        check_texts("targets", given)


def test_models_with_the_same_vocabularies_may_vote():
    check_same_vocabularies([random_model(1), random_model(2, attention="none")])
    with refuses("models", "model 3"):
        check_same_vocabularies([random_model(1), random_model(2), random_model(source_unit="words")])


@pytest.mark.parametrize("device", ["cuda:99", "abacus", "meta:x"])
def test_a_device_must_be_there(device):
    assert usable_device("cpu") == torch.device("cpu")
    with refuses("device", repr(device)):
        usable_device(device)
