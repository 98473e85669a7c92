"""What a translator is given: each mistake has its sentence."""

import math

import numpy as np
import pytest
import torch
from tests.refuses import refuses
from tests.translation.models import random_model

from regard.translation.inputs import Search, batch_size_of, check_models, sentences_in, strength_of, usable_device


def test_sentences_are_taken_one_by_one():
    def endless():
        yield "first"
        raise AssertionError("it was read ahead")

    assert next(sentences_in("sentences", endless())) == "first"


@pytest.mark.parametrize(("given", "said"), [("ab", "one string"), ([None], "NoneType at number 0")])
def test_what_is_no_sentence_is_refused(given, said):
    with refuses("targets", said):
        list(sentences_in("targets", given))


@pytest.mark.parametrize(("given", "said"), [("ab", "one string"), (None, "NoneType"), (5, "int")])
def test_what_holds_no_sentences_is_refused_before_one_is_asked_for(given, said):
    with refuses("targets", said, "a list of sentences"):
        sentences_in("targets", given)


@pytest.mark.parametrize(
    ("given", "strength"), [(None, 1.0), (0, 0.0), (2.5, 2.5), (-1, -1.0), (np.float32(1), 1.0), (np.int64(2), 2.0)]
)
def test_any_finite_strength_is_taken(given, strength):
    assert strength_of(given) == strength
    assert type(strength_of(given)) is float


@pytest.mark.parametrize("given", [math.nan, math.inf, "1", True, [1], np.float32("nan"), np.int64(21), 1j])
def test_other_strengths_are_refused(given):
    with refuses("length_penalty", "20"):
        strength_of(given)


def test_a_batch_has_a_sentence():
    assert (batch_size_of(1), batch_size_of(np.int64(8))) == (1, 8)
    for given in (-1, 0, 2.5, None):
        with refuses("batch_size", str(given), "1 or more"):
            batch_size_of(given)


def test_a_search_has_numbers_of_python():
    search = Search.checked(np.int64(3), np.int64(2), np.float32(0.5), np.int64(1), np.int64(9), np.int64(4))
    assert search == Search(beams=3, nbest=2, strength=0.5, shortest=1, longest=9, batch_size=4)
    assert {type(number) for number in vars(search).values()} == {int, float}
    assert Search.checked(3, 2, 0.5, 1, None, 4).longest is None


def test_models_with_the_same_vocabularies_may_vote():
    check_models([random_model(1), random_model(2, attention="none")])
    with refuses("models", "model 3"):
        check_models([random_model(1), random_model(2), random_model(source_unit="words")])


@pytest.mark.parametrize("device", ["cuda:99", "abacus", "meta:x"])
def test_a_device_must_be_there(device):
    assert usable_device("cpu") == torch.device("cpu")
    with refuses("device", repr(device)):
        usable_device(device)
