"""Options refuse what is out of range or does not go together, and convert whole numbers of any library."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.refuses import refuses

from regard.translation.options import (
    CorpusOptions,
    HeldOutOptions,
    SearchOptions,
    checked_length_penalty,
    whole_number,
)


@pytest.mark.parametrize("given", [2, np.int64(2), torch.tensor(2)])
def test_whole_numbers_of_any_library_become_ints(given):
    number = whole_number("size", given, 1, 3, "Leave it out.")
    assert (number, type(number)) == (2, int)


@pytest.mark.parametrize("given", [0, 4, 2.0, "2", None, True, torch.tensor([1, 2]), np.float64(2)])
def test_everything_else_is_refused(given):
    with refuses("size", "whole", "number", "1 to 3"):
        whole_number("size", given, 1, 3, "Leave it out.")


def test_search_options_become_plain_numbers():
    options = SearchOptions(np.int64(2), np.int64(3), np.float32(0.5), np.int64(1), np.int64(9), np.int64(4))
    assert options == SearchOptions(nbest=2, beams=3, length_penalty=0.5, shortest=1, longest=9, batch_size=4)
    assert {type(number) for number in vars(options).values()} == {int, float}
    assert SearchOptions(5, 5).longest is None


@pytest.mark.parametrize(
    ("options", "argument", "word"),
    [
        ({"batch_size": 0}, "batch_size", "from 1 to"),
        ({"batch_size": 1.5}, "batch_size", "1.5"),
        ({"batch_size": 10**20}, "batch_size", "from 1 to"),
        ({"beams": 0}, "beams", "from 1 to"),
        ({"beams": 2.5}, "beams", "2.5"),
        ({"beams": "3"}, "beams", "'3'"),
        ({"beams": None}, "beams", "None"),
        ({"beams": 10**20}, "beams", "from 1 to"),
        ({"beams": 2, "nbest": 3}, "nbest", "from 1 to 2"),
        ({"nbest": 0}, "nbest", "0"),
        ({"nbest": 2.0}, "nbest", "2.0"),
        ({"shortest": -1}, "shortest", "-1"),
        ({"shortest": 1.5}, "shortest", "1.5"),
        ({"shortest": 100_001}, "shortest", "100001"),
        ({"shortest": 10**20}, "shortest", "from 0 to"),
        ({"longest": 0}, "longest", "from 1"),
        ({"longest": "9"}, "longest", "'9'"),
        ({"longest": True}, "longest", "True"),
        ({"longest": 100_001}, "longest", "100001"),
        ({"longest": 10**12}, "longest", "from 1"),
        ({"shortest": 5, "longest": 3}, "longest", "from 5"),
        ({"length_penalty": 1e6}, "length_penalty", "1000000.0"),
        ({"length_penalty": float("nan")}, "length_penalty", "nan"),
    ],
)
def test_search_options_out_of_range_are_refused(options, argument, word):
    with refuses(argument, word):
        SearchOptions(**options)


@pytest.mark.parametrize(
    ("given", "strength"), [(0, 0.0), (2.5, 2.5), (-1, -1.0), (np.float32(1), 1.0), (np.int64(2), 2.0), (-20, -20.0)]
)
def test_a_length_penalty_becomes_a_float(given, strength):
    assert checked_length_penalty(given) == strength
    assert type(checked_length_penalty(given)) is float


@pytest.mark.parametrize(
    "given", [math.nan, math.inf, "1", True, None, [1], np.float32("nan"), np.int64(21), 1j, 20.5, 10**400]
)
def test_what_is_no_length_penalty_is_refused(given):
    with refuses("length_penalty", "number from", "-20", "alone"):
        checked_length_penalty(given)


A = Path("a")


def next_name(options):
    return next(iter(options))


def test_options_that_go_together():
    CorpusOptions(corpus="numbers", language="fr").check_one_corpus("train")
    CorpusOptions(pairs=A, reverse=True).check_one_corpus("train")
    CorpusOptions(source=A, target=A).check_one_corpus("train")
    HeldOutOptions(valid_source=A, valid_target=A).check_fits(CorpusOptions(pairs=A))
    HeldOutOptions(valid_share=0.01, test_share=0.0).check_fits(CorpusOptions(pairs=A))


@pytest.mark.parametrize(
    ("options", "argument", "word"),
    [
        ({"source": A}, "target", "both --source and --target"),
        ({"target": A}, "source", "both --source and --target"),
        ({"corpus": "lists", "language": "fr"}, "language", "the corpus numbers"),
        ({"corpus": "lists", "reverse": True}, "reverse", "no --pairs"),
    ],
)
def test_corpus_options_that_lack_another_are_refused(options, argument, word):
    with refuses(argument, word):
        CorpusOptions(**options)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "no sentence pairs"),
        ({"corpus": "lists", "pairs": A}, "several corpora"),
        ({"pairs": A, "source": A, "target": A}, "several corpora"),
    ],
)
def test_there_is_one_corpus(options, word):
    with refuses("train", word):
        CorpusOptions(**options).check_one_corpus("train")


@pytest.mark.parametrize(
    ("options", "argument", "word"),
    [
        ({"valid_source": A}, "valid_target", "both --valid-source"),
        ({"valid_target": A}, "valid_source", "both --valid-source"),
        ({"valid_pairs": A, "valid_source": A, "valid_target": A}, "valid_pairs", "--valid-source too"),
        ({"valid_pairs": A, "valid_share": 0.01}, "valid_share", "files to validate on"),
        ({"valid_pairs": A, "test_share": 0.5}, "test_share", "files to validate on"),
        ({"valid_share": 0.0}, "valid_share", "a share of the pairs"),
    ],
)
def test_held_out_options_that_do_not_go_together_are_refused(options, argument, word):
    with refuses(argument, word):
        HeldOutOptions(**options)


@pytest.mark.parametrize(
    "options",
    [{"valid_pairs": A}, {"valid_share": 0.01}, {"test_share": 0.01}],
    ids=lambda options: next(iter(options)),
)
def test_a_built_in_corpus_brings_its_own_parts(options):
    with refuses(next_name(options), "the corpus dates"):
        HeldOutOptions(**options).check_fits(CorpusOptions(corpus="dates"))


def test_options_do_not_wait_for_torch():
    code = "import sys, regard.translation.options; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
