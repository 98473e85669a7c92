"""`beam`: it finds what its docstring promises, whatever the batch, the ties and the work it saves."""

from dataclasses import replace
from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.refuses import refuses
from tests.translation.search import procedure
from tests.translation.search.toys import Table, Toy, random_sources, random_table

from regard.translation.search import Effort, Stepped, beam, forced, greedy
from regard.translation.vocabulary import BEGIN, END, PAD

PATIENT = Effort(stop_early=False, pack_at=inf, narrow=False)


def as_found(hypotheses):
    return [procedure.Found(one.tokens, one.score, one.log_probability, one.finished) for one in hypotheses]


def same(hypotheses, found):
    assert [(one.tokens, one.finished) for one in hypotheses] == [(one.tokens, one.finished) for one in found]
    for one, other in zip(hypotheses, found, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-9)
        assert one.log_probability == pytest.approx(other.total, abs=1e-9)


def tied_table(sentences, steps, vocabulary, levels, seed):
    """Log-probabilities from a few exact values: full of ties, within a beam and between totals."""
    generator = torch.Generator().manual_seed(seed)
    shape = (sentences, steps, vocabulary ** (steps - 1), vocabulary)
    halvings = torch.randint(3, 3 + levels, shape, generator=generator)
    return Table(-halvings.float())


@given(seed=st.integers(0, 10_000), strength=st.sampled_from([0.0, 0.6, 1.0, 2.5, -0.5]), longest=st.integers(1, 5))
@settings(max_examples=15)
def test_a_beam_that_is_wide_enough_finds_everything_in_order(seed, strength, longest):
    table = random_table(2, 5, 4, seed=seed)
    options = {"longest": longest, "length_penalty": strength, "forbidden": ()}
    found = beam(table, table.state(), 2, beams=400, nbest=400, **options)
    for sentence in range(2):
        same(found[sentence], procedure.everything(table, sentence, strength=strength, longest=longest))


@given(
    seed=st.integers(0, 10_000),
    beams=st.integers(1, 6),
    data=st.data(),
    strength=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    ties=st.booleans(),
)
@settings(max_examples=40)
def test_a_narrow_beam_follows_the_procedure_told(seed, beams, data, strength, ties):
    table = tied_table(5, 4, 6, 2, seed) if ties else random_table(5, 4, 6, seed=seed)
    nbest = data.draw(st.integers(1, beams))
    shortest = data.draw(st.integers(0, 3))
    longest = torch.tensor(data.draw(st.lists(st.integers(1, 4), min_size=5, max_size=5)))
    found = beam(
        table,
        table.state(),
        5,
        beams=beams,
        nbest=nbest,
        longest=longest,
        shortest=shortest,
        length_penalty=strength,
    )
    for sentence, most in enumerate(longest.tolist()):
        wanted = procedure.search(
            table,
            sentence,
            beams=beams,
            nbest=nbest,
            strength=strength,
            longest=most,
            shortest=shortest,
            forbidden=(PAD, BEGIN),
        )
        same(found[sentence], wanted)


def test_ties_go_to_the_smaller_token_then_to_the_smaller_beam():
    table = Table(torch.full((1, 3, 49, 7), -2.0))
    (found,) = beam(table, table.state(), 1, beams=3, nbest=3, longest=3, length_penalty=0.0, forbidden=(END - 3, 2))
    # Step 1 accepts 1, END, 4; step 2 accepts, in two places, word 1 after beams 0 and 1; so does step 3.
    assert [one.tokens for one in found] == [(), (1, 1, 1), (4, 1, 1)]
    assert [one.finished for one in found] == [True, False, False]


@given(seed=st.integers(0, 10_000), strength=st.sampled_from([0.0, 1.0, 3.0, -1.0]))
@settings(max_examples=15)
def test_what_saves_work_changes_nothing(seed, strength):
    table = random_table(9, 4, 6, sharpness=3.0, seed=seed)
    longest = torch.arange(9) % 4 + 1

    def found(effort):
        options = {"beams": 3, "nbest": 2, "length_penalty": strength, "longest": longest}
        return [as_found(each) for each in beam(table, table.state(), 9, effort=effort, **options)]

    patient = found(PATIENT)
    for effort in (
        Effort(),
        replace(PATIENT, stop_early=True),
        replace(PATIENT, pack_at=0.0),
        replace(PATIENT, pack_at=0.4),
        replace(PATIENT, narrow=True),
        Effort(look_every=3),
        replace(PATIENT, look_every=8),
    ):
        assert found(effort) == patient


def steps_asked(effort, **options):
    """The shapes of tokens that a search asks for: sentence 0 ends at once, sentence 1 goes on."""
    logits = torch.zeros(2, 4, 216, 6)
    logits[0, ..., END] = 20.0
    logits[1, ..., 5] = 20.0
    table = Table(logits.log_softmax(-1))
    beam(table, table.state(), 2, longest=4, length_penalty=0.0, effort=effort, **options)
    return table.asked


def test_work_is_saved_when_asked_for():
    assert steps_asked(PATIENT, beams=2) == [(2, 1), (2, 2), (2, 2), (2, 2)]
    assert steps_asked(replace(PATIENT, stop_early=True, pack_at=0.5), beams=2) == [(2, 1), (1, 2), (1, 2), (1, 2)]
    assert steps_asked(replace(PATIENT, narrow=True, pack_at=0.5), beams=1) == [(2, 1), (1, 1), (1, 1), (1, 1)]


def test_finished_beams_are_not_computed():
    logits = torch.zeros(1, 5, 6**4, 6)
    logits[..., END] = 1.0
    table = Table(logits.log_softmax(-1))
    beam(table, table.state(), 1, beams=4, nbest=4, longest=5, effort=replace(PATIENT, narrow=True))
    widths = [beams for _, beams in table.asked]
    assert widths[1] == 3  # END took one place of four
    assert widths == [1, *sorted(widths[1:], reverse=True)]


@pytest.fixture(scope="module")
def two_hundred():
    toy, sources = Toy(), random_sources(200)

    def found(rows, size):
        """The hypotheses of these sentences, in batches of this size, by sentence."""
        results = {}
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            state, lengths = toy.read([sources[row] for row in batch])
            each = beam(
                toy, state, len(batch), beams=5, nbest=5, longest=(lengths + 4).clamp(max=9), source_lengths=lengths
            )
            results |= dict(zip(batch, each, strict=True))
        return results

    return found


def test_the_batch_never_shows(two_hundred):
    alone = two_hundred(range(200), 1)
    lengths = {len(one.tokens) for each in alone.values() for one in each}
    assert len(lengths) > 6  # the sentences differ enough for the comparison to mean something
    shuffled = torch.randperm(200).tolist()
    for together in (two_hundred(range(200), 7), two_hundred(range(200), 64), two_hundred(shuffled, 64)):
        for row in range(200):
            assert [one.tokens for one in together[row]] == [one.tokens for one in alone[row]]
            for one, other in zip(together[row], alone[row], strict=True):
                assert abs(one.score - other.score) < 1e-4
                torch.testing.assert_close(one.alignment, other.alignment, rtol=0, atol=1e-5)


def test_alignments_are_those_of_the_same_words_read_aloud():
    toy, sources = Toy(), random_sources(30)
    state, source_lengths = toy.read(sources)
    found = beam(toy, state, 30, beams=4, nbest=4, longest=12, source_lengths=source_lengths)
    for place in range(4):
        chosen = [each[place] for each in found]
        lengths = torch.tensor([len(one.tokens) for one in chosen])
        targets = torch.zeros(30, max(int(lengths.max()), 1), dtype=torch.int64)
        for row, one in enumerate(chosen):
            targets[row, : len(one.tokens)] = torch.tensor(one.tokens, dtype=torch.int64)
        with torch.no_grad():
            read = forced(toy, state, targets, lengths)
        for row, one in enumerate(chosen):
            expected = read.weights[row, : one.length, : source_lengths[row]]
            torch.testing.assert_close(one.alignment, expected, rtol=0, atol=1e-5)
            assert one.alignment.sum(-1).tolist() == pytest.approx([1.0] * one.length, abs=1e-5)
            if one.finished:
                assert one.log_probability == pytest.approx(float(read.totals[row]), abs=1e-4)
                assert one.score == pytest.approx(float(read.scores(1.0)[row]), abs=1e-4)


def test_a_beam_of_one_is_greedy_number_for_number():
    toy, sources = Toy(), random_sources(40)
    state, lengths = toy.read(sources)
    options = {"longest": lengths + 4, "source_lengths": lengths, "shortest": 3, "length_penalty": 0.7}
    lean = greedy(toy, state, 40, **options)
    for (one,), other in zip(beam(toy, state, 40, beams=1, **options), lean, strict=True):
        assert as_found([one]) == as_found([other])
        assert torch.equal(one.alignment, other.alignment)
    assert {one.finished for one in lean} == {True, False}


def test_a_model_without_attention_has_no_alignment():
    table = random_table(2, 3, 5)

    def blind(tokens, state):
        stepped = table(tokens, state)
        return Stepped(stepped.log_probabilities, None, stepped.state)

    assert all(one.alignment is None for each in beam(blind, table.state(), 2, longest=3) for one in each)


def test_alignments_keep_the_width_of_the_batch_unless_lengths_are_given():
    table = random_table(1, 3, 5)
    assert beam(table, table.state(), 1, longest=3)[0][0].alignment.shape[1] == 3
    assert beam(table, table.state(), 1, longest=3, source_lengths=torch.tensor([2]))[0][0].alignment.shape[1] == 2


def test_no_sentences_no_hypotheses():
    table = random_table(2, 3, 5)
    assert beam(table, table.state(torch.arange(0)), 0, longest=3) == []


def test_half_precision_is_searched_in_float32():
    table = random_table(3, 4, 5)
    table.log_probabilities = table.log_probabilities.bfloat16()
    found = beam(table, table.state(), 3, beams=2, nbest=2, longest=4)
    options = {"beams": 2, "nbest": 2, "strength": 1.0, "longest": 4, "forbidden": (PAD, BEGIN)}
    for sentence in range(3):
        same(found[sentence], procedure.search(table, sentence, **options))


@pytest.mark.parametrize("effort", [Effort(), Effort(look_every=8, pack_at=inf, narrow=False)])
@pytest.mark.parametrize("word", [PAD, 4])
def test_nan_is_reported_with_its_sentence(effort, word):
    table = random_table(4, 4, 5)
    table.log_probabilities[2, 1, :, word] = float("nan")
    with refuses("log_probabilities", "sentence", "within", "first"):
        beam(table, table.state(), 4, longest=4, effort=effort)


def test_a_nan_of_an_empty_place_is_nobodys():
    logits = torch.zeros(1, 3, 49, 7)
    logits[:, 0, :, END] = 9.0
    table = Table(logits.log_softmax(-1))
    table.log_probabilities[:, 1:] = float("nan")
    effort = replace(PATIENT, stop_early=True, look_every=3)
    (found,) = beam(table, table.state(), 1, beams=2, longest=3, length_penalty=0.0, effort=effort)
    assert found[0].tokens == ()


def test_logits_are_refused():
    table = Table(torch.zeros(1, 3, 25, 5))
    with refuses("log_probabilities", "1.61", "log_softmax"):
        beam(table, table.state(), 1, longest=3)


def test_nothing_to_write_is_refused():
    table = Table(torch.full((2, 3, 25, 5), -inf))
    table.log_probabilities[0, ..., END] = 0.0
    with refuses("log_probabilities", "sentence 1"):
        beam(table, table.state(), 2, longest=3)


def test_a_step_of_the_wrong_shape_is_refused():
    table = random_table(2, 3, 5)
    with refuses("log_probabilities", "batch 1", "beams 1"):
        beam(table, table.state(), 1, longest=3)


@pytest.mark.parametrize(
    ("options", "argument", "word"),
    [
        ({"beams": 0}, "beams", "1 or more"),
        ({"beams": 2, "nbest": 3}, "nbest", "1 to 2, as many hypotheses as"),
        ({"nbest": 0}, "nbest", "0"),
        ({"longest": 0}, "longest", "a length of at least 1"),
        ({"longest": torch.tensor([3, 3, 3])}, "longest", "one a sentence"),
        ({"longest": 2.5}, "longest", "2.5"),
        ({"shortest": -1}, "shortest", "-1"),
        ({"forbidden": (END,)}, "forbidden", "(3,), with END among them"),
    ],
)
def test_bad_arguments_are_named(options, argument, word):
    table = random_table(2, 3, 5)
    with refuses(argument, word):
        beam(table, table.state(), 2, **({"longest": 3} | options))
