"""What a translator is given: each mistake has its sentence."""

import math

import pytest
import torch
from tests.translation.models import random_model

from regard.errors import RegardError
from regard.translation.inputs import check_batch_size, check_models, sentences_in, strength_of, usable_device


def test_sentences_are_taken_one_by_one():
    def endless():
        yield "first"
        raise AssertionError("it was read ahead")

    assert next(sentences_in("sentences", endless())) == "first"


@pytest.mark.parametrize(("given", "said"), [("ab", "one string"), ([None], "NoneType at number 0")])
def test_what_is_no_sentence_is_refused(given, said):
    with pytest.raises(RegardError, match=f"targets: got {said}"):
        list(sentences_in("targets", given))


@pytest.mark.parametrize(("given", "strength"), [(None, 1.0), (0, 0.0), (2.5, 2.5), (-1, -1.0)])
def test_any_finite_strength_is_taken(given, strength):
    assert strength_of(given) == strength


@pytest.mark.parametrize("given", [math.nan, math.inf, "1", True, [1]])
def test_other_strengths_are_refused(given):
    with pytest.raises(RegardError, match=r"length_penalty: got .* needed a number from -20 to 20"):
        strength_of(given)


def test_a_batch_has_a_sentence():
    check_batch_size(1)
    with pytest.raises(RegardError, match="batch_size: got -1; needed 1 or more"):
        check_batch_size(-1)


def test_models_with_the_same_vocabularies_may_vote():
    check_models([random_model(1), random_model(2, attention="none")])
    with pytest.raises(RegardError, match="another source vocabulary in model 3 than in the first"):
        check_models([random_model(1), random_model(2), random_model(source_unit="words")])


@pytest.mark.parametrize("device", ["cuda:99", "abacus", "meta:x"])
def test_a_device_must_be_there(device):
    assert usable_device("cpu") == torch.device("cpu")
    with pytest.raises(RegardError, match=f"device: got '{device}'; needed a device that torch can use here"):
        usable_device(device)
