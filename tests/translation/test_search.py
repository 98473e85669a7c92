"""Searches find what enumeration finds, in a defined order, and refuse what they cannot rank."""

from dataclasses import replace
from itertools import chain
from math import inf, log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.refuses import refuses
from tests.translation import plain_search
from tests.translation.toy_steps import Table, Toy, random_sources, random_table

from regard.translation.search import (
    BLOCK,
    Contest,
    Effort,
    Ends,
    History,
    Hypothesis,
    Limits,
    States,
    Stepped,
    beam,
    best_first,
    check_normalised,
    check_numbers,
    check_shape,
    ensemble,
    forced,
    greedy,
    penalties,
    penalty,
    restrict,
    sample,
    walk,
    width_of,
)
from regard.translation.vocabulary import BEGIN, END, PAD

PATIENT = Effort(stop_early=False, pack_at=inf, narrow=False)


def as_found(hypotheses):
    return [plain_search.Found(one.tokens, one.score, one.log_probability, one.finished) for one in hypotheses]


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
        same(found[sentence], plain_search.everything(table, sentence, strength=strength, longest=longest))


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
        wanted = plain_search.search(
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
        same(found[sentence], plain_search.search(table, sentence, **options))


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


def by_sorting(entries, count):
    values, indices = entries.float().clamp(max=0.0).sort(dim=-1, descending=True, stable=True)
    return values[..., :count], indices[..., :count]


@given(
    seed=st.integers(0, 10_000),
    vocabulary=st.integers(1, 9 * BLOCK),
    count=st.integers(1, 9),
    levels=st.sampled_from([1, 2, 5, 1000]),
)
def test_agrees_with_a_stable_sort(seed, vocabulary, count, levels):
    generator = torch.Generator().manual_seed(seed)
    entries = -torch.randint(levels, (3, 2, vocabulary), generator=generator).float() / 7
    entries[torch.rand(entries.shape, generator=generator) < 0.2] = -torch.inf
    values, indices = best_first(entries, count)
    wanted_values, wanted_indices = by_sorting(entries, count)
    assert torch.equal(indices, wanted_indices)
    assert torch.equal(values, wanted_values)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_are_compared_as_float32(dtype):
    entries = torch.randn(4, 1000).log_softmax(-1).to(dtype)
    values, indices = best_first(entries, 5)
    assert values.dtype == torch.float32
    assert torch.equal(indices, by_sorting(entries, 5)[1])


def test_the_two_zeros_are_one_number():
    assert best_first(torch.tensor([-0.0, 0.0, -0.0]), 3)[1].tolist() == [0, 1, 2]


@pytest.mark.parametrize("vocabulary", [9, 40 * BLOCK + 3])
def test_a_nan_comes_first_whatever_its_sign(vocabulary):
    entries = torch.full((2, vocabulary), -1.0)
    entries[0, vocabulary - 2] = float("nan")
    entries[1, vocabulary - 1] = torch.tensor(-1, dtype=torch.int32).view(torch.float32)  # a NaN with its sign set
    values, indices = best_first(entries, 2)
    assert values[:, 0].isnan().all()
    assert indices.tolist() == [[vocabulary - 2, 0], [vocabulary - 1, 0]]


def test_the_input_is_left_alone():
    entries = torch.randn(2, 500)
    copy = entries.clone()
    best_first(entries, 3)
    assert torch.equal(entries, copy)


def test_gives_all_there_are_when_asked_for_more():
    assert best_first(torch.tensor([-2.0, -1.0]), 5)[1].tolist() == [1, 0]


def test_a_row_for_every_token():
    check_shape(torch.zeros(2, 3, 5), 2, 3)
    with refuses("log_probabilities", "(2, 5)"):
        check_shape(torch.zeros(2, 5), 2, 1)
    with refuses("log_probabilities", "batch 3", "beams 2"):
        check_shape(torch.zeros(2, 3, 5), 3, 2)


def test_probabilities_may_miss_some_but_not_exceed_one():
    words = torch.randn(3, 2, 1000).log_softmax(-1)
    check_normalised(words)
    check_normalised(words.bfloat16())
    check_normalised(words.masked_fill(torch.rand_like(words) < 0.5, -torch.inf))
    check_normalised(words[:0])
    with refuses("log_probabilities", "most 1", "log_softmax"):
        check_normalised(words + 0.2)


def test_who_met_a_nan_is_named_by_its_place_in_the_batch():
    check_numbers(torch.tensor([False, False]), torch.tensor([3, 8]), 4)
    with refuses("log_probabilities", "first 4"):
        check_numbers(torch.tensor([False, True]), torch.tensor([3, 8]), 4)


def test_values():
    assert penalty(1, 0.6) == 1.0
    assert penalty(40, 0.0) == 1.0
    assert penalty(13, 1.0) == 3.0
    assert penalty(torch.tensor([1.0, 19.0]), 0.5).tolist() == pytest.approx([1.0, 2.0])


def test_a_table_of_all_lengths():
    assert penalties(3, 0.7).tolist() == [penalty(length, 0.7) for length in range(4)]


def test_whole_numbers_of_numpy_are_whole_numbers():
    assert width_of(np.int64(5), np.int32(2)) == (5, 2)


@pytest.mark.parametrize(
    ("beams", "nbest", "argument", "word"),
    [
        (0, 1, "beams", "1 or more"),
        (2.5, 1, "beams", "1 or more"),
        ("3", 1, "beams", "'3'"),
        (None, 1, "beams", "None"),
        (2, 3, "nbest", "1 to 2, as many hypotheses as"),
        (5, 2.0, "nbest", "2.0"),
    ],
)
def test_no_beam_has_such_a_width(beams, nbest, argument, word):
    with refuses(argument, word):
        width_of(beams, nbest)


SOME = torch.tensor([True, False, True, True])


def test_looks_only_when_it_is_time():
    assert Effort(look_every=3, pack_at=0.0).survivors(SOME, 2) is None
    assert Effort(look_every=3, pack_at=0.0).survivors(SOME, 3).tolist() == [0, 2, 3]


def test_packs_when_enough_have_finished():
    assert Effort(pack_at=0.25).survivors(SOME, 1).tolist() == [0, 2, 3]
    assert Effort(pack_at=0.26).survivors(SOME, 1) is None
    assert Effort(pack_at=0.0).survivors(torch.ones(4, dtype=torch.bool), 1) is None


def test_the_end_of_all_is_always_seen():
    assert Effort(pack_at=inf).survivors(torch.zeros(4, dtype=torch.bool), 1).tolist() == []


def test_a_gpu_is_asked_seldom():
    assert Effort.on("cpu") == Effort()
    assert Effort.on("cuda").look_every > 1
    assert not Effort.on("cuda").narrow


def test_never_looking_is_refused():
    with refuses("look_every", "1 or more"):
        Effort(look_every=0)


def test_refuses_forbidden_words_and_early_ends():
    limits = Limits.checked(2, 3, 9, (PAD, BEGIN), "cpu")
    words = torch.tensor([[PAD, END], [4, BEGIN]])
    assert limits.refused(words, 2).tolist() == [[True, True], [False, True]]
    assert limits.refused(words, 3).tolist() == [[True, False], [False, True]]
    assert (limits.spare(2), limits.spare(3)) == (3, 2)


def test_one_length_serves_all_and_rows_can_be_kept():
    assert Limits.checked(3, 0, 9, (), "cpu").longest.tolist() == [9, 9, 9]
    limits = Limits.checked(3, 0, torch.tensor([4, 7, 5], dtype=torch.int32), (), "cpu")
    assert limits.most == 7
    assert limits.keep(torch.tensor([0, 2])).longest.tolist() == [4, 5]
    assert not limits.refused(torch.tensor([[PAD, END]]), 1).any()


def test_whole_numbers_of_numpy_are_lengths():
    limits = Limits.checked(2, np.int64(3), np.int64(3), (), "cpu")
    assert (limits.shortest, limits.most, limits.longest.tolist()) == (3, 3, [3, 3])


def test_a_sentence_with_its_own_longest_length_may_be_cut_off_before_the_shortest():
    assert Limits.checked(2, 5, torch.tensor([3, 9]), (), "cpu").longest.tolist() == [3, 9]


@pytest.mark.parametrize(
    ("shortest", "longest", "argument", "word"),
    [
        (100_001, 9, "shortest", "100001"),
        (10**20, 9, "shortest", "1"),
        (1.5, 9, "shortest", "1.5"),
        (5, 3, "longest", "at least 5, the shortest length"),
        (0, 100_001, "longest", "100001"),
        (0, np.int64(100_001), "longest", "100001"),
        (0, "9", "longest", "a length of at least 1"),
        (0, None, "longest", "None"),
        (0, True, "longest", "True"),
    ],
)
def test_what_is_no_length_is_refused(shortest, longest, argument, word):
    with refuses(argument, word):
        Limits.checked(1, shortest, longest, (), "cpu")


def numbers(*rows):
    return torch.tensor(rows)


def test_traces_back_through_a_packed_batch():
    history = History()
    weights = lambda *rows: torch.tensor(rows, dtype=torch.float32)[..., None].expand(-1, -1, 2)  # noqa: E731
    # Two sentences; the first finishes at step 1 from beam 1, the second at step 2.
    history.write(torch.tensor([0, 1]), numbers([4, 5], [6, 7]), numbers([0, 0], [0, 0]), weights([1], [2]))
    history.write(torch.tensor([0, 1]), numbers([8, END], [9, 4]), numbers([0, 1], [1, 0]), weights([3, 4], [5, 6]))
    history.write(torch.tensor([1]), numbers([END, 5]), numbers([0, 1]), weights([7, 8])[..., :1])
    ends = Ends(
        key=torch.tensor([[-1.0, -torch.inf], [-2.0, -3.0]], dtype=torch.float64),
        total=torch.tensor([[-1.0, -torch.inf], [-2.0, -3.0]], dtype=torch.float64),
        step=numbers([1, 0], [2, 2]),
        slot=numbers([1, 0], [0, 1]),
    )
    (first,), (second, third) = history.trace(ends, 0.0, torch.tensor([2, 1]))
    assert (first.tokens, first.finished) == ((5,), True)
    assert first.alignment.tolist() == [[1, 1], [4, 4]]
    assert (second.tokens, second.finished) == ((7, 9), True)
    assert second.alignment.tolist() == [[2], [6], [7]]
    assert (third.tokens, third.finished) == ((6, 4, 5), False)
    assert third.alignment.tolist() == [[2], [5], [8]]


def test_ends_are_merged_in_order_and_the_earlier_wins_a_tie():
    def ends(keys, step):
        keys = torch.tensor([keys], dtype=torch.float64)
        places = torch.arange(keys.shape[1])[None]
        return Ends(keys, keys, torch.full_like(places, step), places)

    best = ends([-1.0, -3.0], 0).best_with(ends([-3.0, -1.0, -2.0], 1))
    assert best.key.tolist() == [[-1.0, -1.0]]
    assert best.step.tolist() == [[0, 1]]
    assert best.slot.tolist() == [[0, 1]]
    kept = ends([-1.0, -3.0], 0).best_with(ends([-3.0], 1))
    assert kept.step.tolist() == [[0, 0]]


def test_ends_are_kept_and_put_back_by_row():
    none = Ends.none(3, 2, "cpu")
    assert (none.key == -torch.inf).all()
    some = none.keep(torch.tensor([1]))
    some = Ends(some.key + torch.inf, some.total, some.step + 4, some.slot + 5)
    put = none.put(torch.tensor([2]), some)
    assert put.step.tolist() == [[0, 0], [0, 0], [4, 4]]
    assert put.slot.tolist() == [[0, 0], [0, 0], [5, 5]]


def begin(*, beams=3, nbest=1, strength=0.0, longest=9):
    return Contest.begin(1, beams, nbest, strength, Limits.checked(1, 0, longest, (), "cpu"), "cpu")


def stepped(*rows):
    return Stepped(torch.tensor([rows]), None, None)


def test_those_that_go_on_stand_in_front():
    contest = begin()
    chosen = contest.choose(stepped([-3.0, -inf, -2.0, -1.0, -inf]), 1)
    assert chosen.tokens.tolist() == [[2, 0, END]]
    assert chosen.totals.tolist() == [[-2.0, -3.0, -1.0]]
    after = contest.after(chosen, 1, stop_early=False)
    assert after.totals.tolist() == [[-2.0, -3.0, -inf]]
    assert after.places.tolist() == [[2]]
    assert (after.ends.key.item(), after.ends.step.item(), after.ends.slot.item()) == (-1.0, 0, 2)
    assert after.narrowed().totals.tolist() == [[-2.0, -3.0]]


def test_a_finished_place_is_not_given_away():
    contest = begin(beams=2, longest=4)
    contest = contest.after(contest.choose(stepped([-2.0, -3.0, -inf, -1.0]), 1), 1, stop_early=False)
    chosen = contest.choose(stepped([-1.0, -2.0, -inf, -9.0], [-1.0, -1.0, -1.0, -1.0]), 2)
    assert chosen.totals.tolist() == [[-3.0, -inf]]


def test_a_beam_without_a_chance_is_given_up_and_one_with_a_chance_is_not():
    words = stepped([-2.0, -inf, -inf, -1.0])
    for strength, longest, going in ((0.0, 9, False), (1.0, 9, True), (1.0, 6, False), (1.0, 7, False), (1.0, 8, True)):
        # END scores -1; the other can still reach -2 / ((5 + longest) / 6), which is -1 at 7: a tie is no gain.
        contest = begin(strength=strength, longest=longest)
        assert contest.after(contest.choose(words, 1), 1, stop_early=True).going.tolist() == [going]


def test_a_word_above_certainty_does_not_raise_a_total():
    contest = begin()
    assert contest.choose(stepped([1e-7, -inf, -inf, -inf]), 1).totals[0, 0] == 0.0


def test_each_walk_ends_by_itself_and_counts_its_own_words():
    table = random_table(1, 4, 6)
    plan = torch.tensor([[[4, END, 5, 5], [5, 4, 5, END], [5, 5, 5, 5]]])  # (sentence, walk, step)

    def choose(log_probabilities, rows, length):
        tokens = plan[rows, :, length - 1]
        return log_probabilities.gather(-1, tokens[..., None])[..., 0], tokens

    limits = Limits.checked(1, 0, 4, (), "cpu")
    history, ends = walk(table, table.state(), 1, choose, count=3, limits=limits, effort=Effort())
    (found,) = history.trace(ends, 0.0, None)
    assert [one.tokens for one in found] == [(4,), (5, 4, 5), (5, 5, 5, 5)]
    assert [one.finished for one in found] == [True, True, False]
    for one in found:
        total, prefix = 0.0, 0
        for step, token in enumerate([*one.tokens, END] if one.finished else one.tokens):
            total += float(table.log_probabilities[0, step, prefix, token])
            prefix = prefix * 6 + token
        assert one.log_probability == total
        assert one.alignment.shape == (one.length, 3)
    assert table.asked == [(1, 1), (1, 3), (1, 3), (1, 3)]


@pytest.mark.parametrize("shortest", [0, 3])
def test_follows_the_largest_word(shortest):
    table = random_table(20, 4, 6)
    found = greedy(table, table.state(), 20, longest=4, shortest=shortest)
    options = {"beams": 1, "nbest": 1, "strength": 1.0, "longest": 4, "shortest": shortest, "forbidden": (PAD, BEGIN)}
    for sentence, one in enumerate(found):
        (wanted,) = plain_search.search(table, sentence, **options)
        assert (one.tokens, one.finished) == (wanted.tokens, wanted.finished)
        assert one.score == pytest.approx(wanted.score)
        assert one.log_probability == pytest.approx(wanted.total)
        assert one.length >= shortest


def test_equal_words_go_to_the_smaller_token():
    table = Table(torch.full((1, 2, 6, 6), -2.0))
    assert greedy(table, table.state(), 1, longest=2)[0].tokens == (1, 1)


def test_finished_sentences_are_packed_away():
    logits = torch.zeros(3, 3, 36, 6)
    logits[:2, 0, :, END] = 9.0
    logits[2, ..., 4] = 9.0
    table = Table(logits.log_softmax(-1))
    found = greedy(table, table.state(), 3, longest=3)
    assert table.asked == [(3, 1), (1, 1), (1, 1)]
    assert [one.tokens for one in found] == [(), (), (4, 4, 4)]
    never = Table(logits.log_softmax(-1))
    again = greedy(never, never.state(), 3, longest=3, effort=Effort(pack_at=2.0))
    assert never.asked == [(3, 1)] * 3
    assert [(one.tokens, one.score) for one in again] == [(one.tokens, one.score) for one in found]


def test_nan_is_reported():
    table = random_table(2, 3, 5)
    table.log_probabilities[1, 0, 0, 0] = float("nan")
    with refuses("log_probabilities", "function", "sentence", "within"):
        greedy(table, table.state(), 2, longest=3)


def test_greedy_refuses_when_nothing_can_be_written():
    table = Table(torch.full((1, 2, 5, 5), -torch.inf))
    with refuses("log_probabilities", "sentence 0"):
        greedy(table, table.state(), 1, longest=2)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def first_words(table, count, **options):
    (found,) = sample(table, table.state(), 1, longest=1, generator=seeded(), count=count, **options)
    words = torch.tensor([one.tokens[0] if one.tokens else END for one in found])
    return words.bincount(minlength=table.vocabulary) / count


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_frequencies_are_probabilities(temperature):
    table = random_table(1, 1, 7)
    seen = first_words(table, 20_000, temperature=temperature, forbidden=(PAD, BEGIN))
    wanted = table.log_probabilities[0, 0, 0].clone()
    wanted[[PAD, BEGIN]] = -torch.inf
    wanted = (wanted / temperature).softmax(-1)
    deviation = (wanted * (1 - wanted) / 20_000).sqrt()
    assert ((seen - wanted).abs() <= 5 * deviation).all()


def test_whole_sentences_come_as_often_as_they_should():
    table = random_table(1, 2, 5, sharpness=0.5)
    (found,) = sample(table, table.state(), 1, longest=2, generator=seeded(), count=20_000, forbidden=())
    share = sum(one.tokens == (4, 1) for one in found) / 20_000
    first, second = table.log_probabilities[0, 0, 0, 4].exp(), table.log_probabilities[0, 1, 4, 1].exp()
    assert share == pytest.approx(float(first * second), abs=0.01)
    one = next(one for one in found if one.tokens == (4, 1))
    assert one.log_probability == pytest.approx(float((first * second).log()), abs=1e-6)
    assert one.score == one.log_probability


def test_the_best_word_alone_is_greedy():
    table = random_table(6, 4, 6)
    drawn = sample(table, table.state(), 6, longest=4, generator=seeded(), count=2, top_k=1)
    for each, one in zip(drawn, greedy(table, table.state(), 6, longest=4), strict=True):
        assert [other.tokens for other in each] == [one.tokens] * 2


def test_one_seed_one_answer_whatever_is_packed():
    table = random_table(12, 4, 6)

    def drawn(seed, effort):
        found = sample(table, table.state(), 12, longest=4, generator=seeded(seed), count=3, effort=effort)
        return [[one.tokens for one in each] for each in found]

    assert drawn(1, Effort()) == drawn(1, Effort(pack_at=2.0))
    assert drawn(1, Effort()) != drawn(2, Effort())


def test_a_sentence_does_not_end_before_its_shortest_length():
    table = random_table(5, 4, 6)
    found = sample(table, table.state(), 5, longest=4, shortest=3, generator=seeded(), count=20)
    assert min(one.length for each in found for one in each) == 3


def test_restrictions():
    probabilities = torch.tensor([0.1, 0.4, 0.4, 0.1])
    keep = lambda **wish: restrict(probabilities.log(), **({"top_k": None, "top_p": None} | wish)).isfinite().tolist()  # noqa: E731
    assert keep() == [True] * 4
    assert keep(top_k=1) == [False, True, False, False]
    assert keep(top_k=3) == [True, True, True, False]
    assert keep(top_p=0.39) == [False, True, False, False]
    assert keep(top_p=0.5) == [False, True, True, False]
    assert keep(top_p=1.0) == [True] * 4
    assert keep(top_k=3, top_p=0.5) == [False, True, True, False]


@pytest.mark.parametrize("temperature", [1e-39, 1e-46, 1e-300])
def test_a_tiny_temperature_is_greedy(temperature):
    table = random_table(3, 4, 6)
    found = sample(table, table.state(), 3, longest=4, generator=seeded(), temperature=temperature)
    best = greedy(table, table.state(), 3, longest=4)
    assert [one.tokens for (one,) in found] == [one.tokens for one in best]


def certain(token):
    """A table that knows one word."""
    table = random_table(1, 3, 6)
    table.log_probabilities[:] = -torch.inf
    table.log_probabilities[..., token] = 0.0
    return table


def test_where_only_a_forbidden_word_is_possible_nothing_is_drawn():
    table = certain(5)
    with refuses("log_probabilities", "sentence 0"):
        sample(table, table.state(), 1, longest=3, generator=seeded(), forbidden=(PAD, BEGIN, 5))


def test_as_many_are_returned_as_were_asked_for_or_none():
    """One of two first words leads nowhere: some walks are lost."""

    def step(tokens, state):
        log_probabilities = torch.full((*tokens.shape, 6), -torch.inf)
        log_probabilities[tokens == BEGIN] = torch.tensor([0, 0, 0, 0, 0.5, 0.5]).log()
        log_probabilities[tokens == 4] = torch.tensor([0, 0, 0, 0, 1.0, 0]).log()
        log_probabilities[tokens == 5] = torch.tensor([1.0, 0, 0, 0, 0, 0]).log()
        return Stepped(log_probabilities, None, state)

    state = random_table(1, 2, 6).state()
    assert len(sample(step, state, 1, longest=1, generator=seeded(), count=10)[0]) == 10
    with refuses("log_probabilities", "sentence 0"):
        sample(step, state, 1, longest=3, generator=seeded(), count=10)


def test_sampling_reports_nan():
    table = random_table(1, 2, 5)
    table.log_probabilities[..., PAD] = float("nan")
    with refuses("log_probabilities", "sentence 0"):
        sample(table, table.state(), 1, longest=2, generator=seeded())


@pytest.mark.parametrize(
    ("options", "argument", "word"),
    [
        ({"count": 0}, "count", "1 or more"),
        ({"temperature": 0.0}, "temperature", "a number above 0"),
        ({"top_k": 0}, "top_k", "1 or more words"),
        ({"top_p": 0.0}, "top_p", "above 0, up to 1"),
        ({"top_p": 1.5}, "top_p", "1.5"),
        ({"top_p": "x"}, "top_p", "'x'"),
        ({"top_k": 2.5}, "top_k", "2.5"),
        ({"count": 2.5}, "count", "2.5"),
        ({"count": True}, "count", "True"),
        ({"temperature": "1"}, "temperature", "'1'"),
        ({"length_penalty": float("nan")}, "length_penalty", "nan"),
        ({"forbidden": 3}, "forbidden", "a sequence of tokens"),
        ({"forbidden": [-1]}, "forbidden", "tokens, from 0 on"),
        ({"forbidden": [1.5]}, "forbidden", "1.5"),
    ],
)
def test_bad_wishes_are_named(options, argument, word):
    table = random_table(1, 2, 5)
    with refuses(argument, word):
        sample(table, table.state(), 1, longest=2, generator=seeded(), **options)


def test_one_model_is_itself_and_twins_too():
    table = random_table(3, 4, 6)
    alone = beam(table, table.state(), 3, longest=4, nbest=3)
    for copies in (1, 2):
        states = States((table.state(),) * copies)
        together = beam(ensemble([table] * copies), states, 3, longest=4, nbest=3)
        for one, other in zip(chain(*alone), chain(*together), strict=True):
            assert one.tokens == other.tokens
            assert one.score == pytest.approx(other.score, abs=1e-5)
            torch.testing.assert_close(one.alignment, other.alignment)


def test_probabilities_and_weights_are_means():
    first, second = random_table(2, 1, 6), random_table(2, 1, 6, seed=1)

    def skewed(tokens, state):
        stepped = second(tokens, state)
        return Stepped(stepped.log_probabilities, stepped.weights.flip(-1), stepped.state)

    begin = torch.full((2, 1), 2)
    both = ensemble([first, skewed])(begin, States((first.state(), second.state())))
    mean = (first.log_probabilities[:, 0].exp() + second.log_probabilities[:, 0].exp()) / 2
    torch.testing.assert_close(both.log_probabilities.exp(), mean)
    one = first(begin, first.state()).weights
    torch.testing.assert_close(both.weights, (one + one.flip(-1)) / 2)


def test_alignments_survive_the_beam():
    toys, sources = [Toy(seed=0), Toy(seed=1)], random_sources(12)
    reads = [toy.read(sources) for toy in toys]
    states, lengths = States(tuple(state for state, _ in reads)), reads[0][1]
    step = ensemble(toys)
    found = beam(step, states, 12, longest=8, source_lengths=lengths)
    for row, (one,) in enumerate(found):
        state = States(tuple(state.keep(torch.tensor([row])) for state in states.each))
        with torch.no_grad():
            read = forced(step, state, torch.tensor([one.tokens]).long(), torch.tensor([len(one.tokens)]))
        torch.testing.assert_close(one.alignment, read.alignment(0, int(lengths[row]))[: one.length], rtol=0, atol=1e-5)


def test_models_without_attention_do_not_thin_the_weights():
    table = random_table(1, 1, 5)

    def blind(tokens, state):
        stepped = table(tokens, state)
        return Stepped(stepped.log_probabilities, None, stepped.state)

    begin, states = torch.full((1, 1), 2), States((table.state(), table.state()))
    torch.testing.assert_close(ensemble([blind, table])(begin, states).weights, table(begin, table.state()).weights)
    assert ensemble([blind, blind])(begin, states).weights is None


def test_a_word_that_both_exclude_stays_excluded():
    table = Table(torch.tensor([0.0, -torch.inf]).view(1, 1, 1, 2))
    both = ensemble([table, table])(torch.full((1, 1), 2), States((table.state(), table.state())))
    assert both.log_probabilities.flatten().tolist() == pytest.approx([log(1), -torch.inf])


def test_models_that_do_not_fit_are_refused():
    table, wide = random_table(1, 1, 5), Table(random_table(1, 1, 5).log_probabilities, source=4)
    more = random_table(1, 1, 6)
    begin, states = torch.full((1, 1), 2), States((table.state(), table.state()))
    with refuses("weights", "over 3", "and 4"):
        ensemble([table, wide])(begin, states)
    with refuses("steps", "(1, 1, 5)", "(1, 1, 6)", "model 1"):
        ensemble([table, more])(begin, states)
    with refuses("state", "of 2"):
        ensemble([table, table])(begin, table.state())
    with refuses("steps", "function", "step"):
        ensemble([])


def test_reads_every_word_to_the_end():
    table = random_table(3, 4, 6)
    targets = torch.tensor([[4, 5, 1], [5, PAD, PAD], [PAD, PAD, PAD]])
    read = forced(table, table.state(), targets, torch.tensor([3, 1, 0]))
    assert read.lengths.tolist() == [4, 2, 1]
    for row, words in enumerate([(4, 5, 1, END), (5, END), (END,)]):
        wanted = [plain_search.words_after(table, row, words[:place])[word] for place, word in enumerate(words)]
        assert read.log_probabilities[row].tolist() == pytest.approx(wanted + [0.0] * (4 - len(words)))
        assert read.totals[row] == pytest.approx(sum(wanted))
        assert read.scores(0.8)[row] == pytest.approx(sum(wanted) / plain_search.divisor(len(words), 0.8))
        assert read.alignment(row).shape == (len(words), 3)
        assert read.alignment(row, 2).shape == (len(words), 2)
        assert (read.weights[row, len(words) :] == 0).all()


def test_what_stands_in_the_padding_is_not_heard():
    toy, sources = Toy(), random_sources(4)
    targets, lengths = torch.randint(4, 60, (4, 6)), torch.tensor([6, 2, 0, 4])
    with torch.no_grad():
        state, _ = toy.read(sources)
        once = forced(toy, state, targets, lengths)
        targets[torch.arange(6) >= lengths[:, None]] = PAD
        again = forced(toy, state, targets, lengths)
    assert torch.equal(once.log_probabilities, again.log_probabilities)


def test_gradients_flow():
    toy, sources = Toy(), random_sources(2)
    state, _ = toy.read(sources)
    forced(toy, state, torch.tensor([[4, 5], [6, 7]]), torch.tensor([2, 1])).totals.sum().backward()
    assert toy.words.weight.grad[4].abs().sum() > 0


def test_without_attention_and_without_sentences():
    table = random_table(2, 3, 5)

    def blind(tokens, state):
        stepped = table(tokens, state)
        return Stepped(stepped.log_probabilities, None, stepped.state)

    read = forced(blind, table.state(), torch.tensor([[4], [1]]), torch.tensor([1, 1]))
    assert read.weights is None
    assert read.alignment(0) is None
    none = forced(table, table.state(torch.arange(0)), torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0).long())
    assert none.totals.tolist() == []


def test_nan_is_reported_only_where_it_counts():
    table = random_table(2, 3, 5)
    table.log_probabilities[0, 2] = float("nan")
    targets = torch.tensor([[4, 4], [4, 4]])
    assert forced(table, table.state(), targets, torch.tensor([1, 2])).totals.isfinite().all()
    with refuses("log_probabilities", "sentence 0"):
        forced(table, table.state(), targets, torch.tensor([2, 2]))


@pytest.mark.parametrize(
    ("targets", "lengths", "argument", "word"),
    [
        (torch.zeros(2, 3), torch.tensor([1, 1]), "targets", "float32 (2, 3) on cpu"),
        (
            torch.zeros(2, 3).long(),
            torch.tensor([1]),
            "lengths",
            "int64 (1,) on cpu",
        ),
        (torch.zeros(2, 3).long(), torch.tensor([1, 4]), "lengths", "int64 (2,) on cpu up to 4"),
    ],
)
def test_bad_targets_are_named(targets, lengths, argument, word):
    table = random_table(2, 4, 5)
    with refuses(argument, word):
        forced(table, table.state(), targets, lengths)


def test_length():
    assert Hypothesis((4, 5), -1.0, -1.0, None).length == 3
    assert Hypothesis((4, 5), -1.0, -1.0, None, finished=False).length == 2
