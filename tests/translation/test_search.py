"""Searches find what enumeration finds, in a defined order, and refuse what they cannot rank."""

from itertools import chain
from math import inf, log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.refuses import refuses
from tests.translation import plain_search
from tests.translation.toy_steps import Table, Toy, random_sources, random_table

from regard.translation import search
from regard.translation.options import MAX_LENGTH, SearchOptions
from regard.translation.search import (
    BLOCK,
    BackPointers,
    Beams,
    Continuations,
    EnsembleState,
    Finished,
    Hypothesis,
    StepOutput,
    beam_search,
    check_no_nan,
    check_normalised,
    check_shape,
    ensemble,
    length_penalties,
    length_penalty,
    score_targets,
    top_k_stable,
)
from regard.translation.vocabulary import BEGIN, END, PAD

FORBIDDEN = (PAD, BEGIN)


def found_in(step, state, batch, *, longest, source_lengths=None, **options):
    """The hypotheses of `beam_search`; sentences without lengths have sources of three tokens, as tables do."""
    lengths = torch.full((batch,), 3) if source_lengths is None else source_lengths
    longest = longest if isinstance(longest, torch.Tensor) else torch.full((batch,), longest)
    return beam_search(step, state, lengths, longest, SearchOptions(**{"length_penalty": 1.0} | options))


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
    table = random_table(2, 5, 6, seed=seed)
    found = found_in(table, table.state(), 2, beams=400, nbest=400, longest=longest, length_penalty=strength)
    for sentence in range(2):
        everything = plain_search.everything(table, sentence, strength=strength, longest=longest, forbidden=FORBIDDEN)
        same(found[sentence], everything)


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
    found = found_in(
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
            forbidden=FORBIDDEN,
        )
        same(found[sentence], wanted)


def test_ties_go_to_the_smaller_token_then_to_the_smaller_beam():
    table = Table(torch.full((1, 3, 49, 7), -2.0))
    (found,) = found_in(table, table.state(), 1, beams=3, nbest=3, longest=3, length_penalty=0.0)
    # Step 1 accepts 1, END, 4; step 2 accepts, in two places, word 1 after beams 0 and 1; so does step 3.
    assert [one.tokens for one in found] == [(), (1, 1, 1), (4, 1, 1)]
    assert [one.finished for one in found] == [True, False, False]


@pytest.fixture
def pace(monkeypatch):
    """A function that sets how often a search checks for finished sentences, and when it removes them."""

    def set_pace(*, every=1, share=0.125):
        plain = search._active_sentences

        def active(is_active, length):
            if length % every:
                return None
            return plain(is_active, length)

        monkeypatch.setattr(search, "PACK_SHARE", share)
        monkeypatch.setattr(search, "_active_sentences", active)

    return set_pace


@pytest.mark.parametrize(("every", "share"), [(1, 0.0), (1, 0.4), (3, 0.125), (8, inf)])
@pytest.mark.parametrize("strength", [0.0, 1.0, 3.0, -1.0])
def test_when_finished_sentences_are_removed_changes_nothing(pace, strength, every, share):
    table = random_table(9, 4, 6, sharpness=3.0, seed=int(10 * strength) + every)
    longest = torch.arange(9) % 4 + 1

    def found():
        options = {"beams": 3, "nbest": 2, "length_penalty": strength, "longest": longest}
        return [as_found(each) for each in found_in(table, table.state(), 9, **options)]

    pace(share=inf)
    patient = found()
    pace(every=every, share=share)
    assert found() == patient


def test_finished_sentences_are_removed():
    """Sentence 0 ends at once, sentence 1 goes on; the other beams of sentence 0 have no chance left."""
    logits = torch.zeros(2, 4, 216, 6)
    logits[0, ..., END] = 20.0
    logits[1, ..., 5] = 20.0
    table = Table(logits.log_softmax(-1))
    found_in(table, table.state(), 2, longest=4, length_penalty=0.0, beams=2)
    assert table.asked == [(2, 1), (1, 2), (1, 2), (1, 2)]


def test_a_gpu_is_asked_rarely_and_keeps_the_batch():
    is_active = torch.tensor([True, False, True, True])

    class OnGpu:
        """What `_active_sentences` reads of a tensor on a GPU."""

        device = torch.device("cuda")

        def __init__(self, values):
            self.values = values

        def sum(self):
            return self.values.sum()

        def __len__(self):
            return len(self.values)

        def nonzero(self):
            return self.values.nonzero()

    assert search._active_sentences(is_active, 1).tolist() == [0, 2, 3]
    assert search._active_sentences(torch.ones(4, dtype=torch.bool), 1) is None
    assert search._active_sentences(OnGpu(is_active), search.CHECK_EVERY_ON_GPU) is None
    none = OnGpu(torch.zeros(4, dtype=torch.bool))
    assert search._active_sentences(none, 1) is None
    assert search._active_sentences(none, search.CHECK_EVERY_ON_GPU).tolist() == []


@pytest.fixture(scope="module")
def two_hundred():
    toy, sources = Toy(), random_sources(200)

    def found(rows, size):
        """The hypotheses of these sentences, in batches of this size, by sentence."""
        results = {}
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            state, lengths = toy.read([sources[row] for row in batch])
            each = found_in(
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
    found = found_in(toy, state, 30, beams=4, nbest=4, longest=12, source_lengths=source_lengths)
    for place in range(4):
        chosen = [each[place] for each in found]
        lengths = torch.tensor([len(one.tokens) for one in chosen])
        targets = torch.zeros(30, max(int(lengths.max()), 1), dtype=torch.int64)
        for row, one in enumerate(chosen):
            targets[row, : len(one.tokens)] = torch.tensor(one.tokens, dtype=torch.int64)
        with torch.no_grad():
            read = score_targets(toy, state, targets, lengths)
        for row, one in enumerate(chosen):
            expected = read.weights[row, : one.length, : source_lengths[row]]
            torch.testing.assert_close(one.alignment, expected, rtol=0, atol=1e-5)
            assert one.alignment.sum(-1).tolist() == pytest.approx([1.0] * one.length, abs=1e-5)
            if one.finished:
                assert one.log_probability == pytest.approx(float(read.totals[row]), abs=1e-4)
                assert one.score == pytest.approx(float(read.totals[row]) / length_penalty(one.length, 1.0), abs=1e-4)


def test_a_beam_of_one_is_greedy_search():
    toy, sources = Toy(), random_sources(40)
    state, lengths = toy.read(sources)
    found = found_in(toy, state, 40, beams=1, longest=lengths + 4, source_lengths=lengths, shortest=3)
    with torch.no_grad():
        for row, (one,) in enumerate(found):
            state, _ = toy.read([sources[row]])
            written, total, token = [], 0.0, BEGIN
            while token != END and len(written) < len(sources[row]) + 4:
                words, _, state = toy(torch.tensor([[token]]), state)
                words = words[0, 0].double()
                words[[PAD, BEGIN, *([END] if len(written) < 2 else [])]] = -inf
                token = int(words.argmax())
                total += float(words[token])
                written.append(token)
            assert [*one.tokens, *([END] if one.finished else [])] == written
            assert one.log_probability == pytest.approx(total, abs=1e-4)
    assert {one.finished for (one,) in found} == {True, False}


def test_a_model_without_attention_has_no_alignment():
    table = random_table(2, 3, 5)

    def blind(tokens, state):
        stepped = table(tokens, state)
        return StepOutput(stepped.log_probabilities, None, stepped.state)

    assert all(one.alignment is None for each in found_in(blind, table.state(), 2, longest=3) for one in each)


def test_alignments_are_cut_to_their_sentence():
    table = random_table(2, 3, 5)
    (first,), (second,) = found_in(table, table.state(), 2, longest=3, source_lengths=torch.tensor([3, 2]))
    assert (first.alignment.shape[1], second.alignment.shape[1]) == (3, 2)


def test_no_sentences_no_hypotheses():
    table = random_table(2, 3, 5)
    assert found_in(table, table.state(torch.arange(0)), 0, longest=3) == []


def test_half_precision_is_searched_in_float32():
    table = random_table(3, 4, 5)
    table.log_probabilities = table.log_probabilities.bfloat16()
    found = found_in(table, table.state(), 3, beams=2, nbest=2, longest=4)
    options = {"beams": 2, "nbest": 2, "strength": 1.0, "longest": 4, "forbidden": FORBIDDEN}
    for sentence in range(3):
        same(found[sentence], plain_search.search(table, sentence, **options))


@pytest.mark.parametrize("every", [1, 8])
@pytest.mark.parametrize("word", [PAD, 4])
def test_nan_is_reported_with_its_sentence(pace, every, word):
    pace(every=every)
    table = random_table(4, 4, 5)
    table.log_probabilities[2, 1, :, word] = float("nan")
    with refuses("log_probabilities", "sentence", "within", "first"):
        found_in(table, table.state(), 4, longest=4)


def test_a_nan_of_a_closed_beam_is_ignored(pace):
    pace(every=3)
    logits = torch.zeros(1, 3, 49, 7)
    logits[:, 0, :, END] = 9.0
    table = Table(logits.log_softmax(-1))
    table.log_probabilities[:, 1:] = float("nan")
    (found,) = found_in(table, table.state(), 1, beams=2, longest=3, length_penalty=0.0)
    assert found[0].tokens == ()


def test_logits_are_refused():
    table = Table(torch.zeros(1, 3, 25, 5))
    with refuses("log_probabilities", "1.61", "log_softmax"):
        found_in(table, table.state(), 1, longest=3)


def test_nothing_to_write_is_refused():
    table = Table(torch.full((2, 3, 25, 5), -inf))
    table.log_probabilities[0, ..., END] = 0.0
    with refuses("log_probabilities", "sentence 1"):
        found_in(table, table.state(), 2, longest=3)


def test_a_step_of_the_wrong_shape_is_refused():
    table = random_table(2, 3, 5)
    with refuses("log_probabilities", "batch 1", "beams 1"):
        found_in(table, table.state(), 1, longest=3)


@pytest.mark.parametrize(
    ("longest", "word"),
    [
        (torch.tensor([3, 0]), "from 1"),
        (torch.tensor([3, 3, 3]), "int64 (2,)"),
        (torch.tensor([3, MAX_LENGTH + 1]), "up to 100001"),
        (torch.tensor([2.5, 2.5]), "float32 (2,)"),
    ],
)
def test_maximum_lengths_that_do_not_fit_are_refused(longest, word):
    table = random_table(2, 3, 5)
    with refuses("max_lengths", word):
        found_in(table, table.state(), 2, longest=longest)


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
    values, indices = top_k_stable(entries, count)
    wanted_values, wanted_indices = by_sorting(entries, count)
    assert torch.equal(indices, wanted_indices)
    assert torch.equal(values, wanted_values)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_are_compared_as_float32(dtype):
    entries = torch.randn(4, 1000).log_softmax(-1).to(dtype)
    values, indices = top_k_stable(entries, 5)
    assert values.dtype == torch.float32
    assert torch.equal(indices, by_sorting(entries, 5)[1])


def test_the_two_zeros_are_one_number():
    assert top_k_stable(torch.tensor([-0.0, 0.0, -0.0]), 3)[1].tolist() == [0, 1, 2]


@pytest.mark.parametrize("vocabulary", [9, 40 * BLOCK + 3])
def test_a_nan_comes_first_whatever_its_sign(vocabulary):
    entries = torch.full((2, vocabulary), -1.0)
    entries[0, vocabulary - 2] = float("nan")
    entries[1, vocabulary - 1] = torch.tensor(-1, dtype=torch.int32).view(torch.float32)  # a NaN with its sign set
    values, indices = top_k_stable(entries, 2)
    assert values[:, 0].isnan().all()
    assert indices.tolist() == [[vocabulary - 2, 0], [vocabulary - 1, 0]]


def test_the_input_is_left_alone():
    entries = torch.randn(2, 500)
    copy = entries.clone()
    top_k_stable(entries, 3)
    assert torch.equal(entries, copy)


def test_gives_all_there_are_when_asked_for_more():
    assert top_k_stable(torch.tensor([-2.0, -1.0]), 5)[1].tolist() == [1, 0]


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
    check_no_nan(torch.tensor([False, False]), torch.tensor([3, 8]), 4)
    with refuses("log_probabilities", "first 4"):
        check_no_nan(torch.tensor([False, True]), torch.tensor([3, 8]), 4)


def test_values():
    assert length_penalty(1, 0.6) == 1.0
    assert length_penalty(40, 0.0) == 1.0
    assert length_penalty(13, 1.0) == 3.0
    assert length_penalty(torch.tensor([1.0, 19.0]), 0.5).tolist() == pytest.approx([1.0, 2.0])


def test_a_table_of_all_lengths():
    assert length_penalties(3, 0.7).tolist() == [length_penalty(length, 0.7) for length in range(4)]


def numbers(*rows):
    return torch.tensor(rows)


def test_traces_back_through_a_packed_batch():
    history = BackPointers()
    weights = lambda *rows: torch.tensor(rows, dtype=torch.float32)[..., None].expand(-1, -1, 2)  # noqa: E731
    # Two sentences; the first finishes at step 1 from beam 1, the second at step 2.
    history.append(
        torch.tensor([0, 1]), Continuations(None, numbers([4, 5], [6, 7]), numbers([0, 0], [0, 0])), weights([1], [2])
    )
    history.append(
        torch.tensor([0, 1]),
        Continuations(None, numbers([8, END], [9, 4]), numbers([0, 1], [1, 0])),
        weights([3, 4], [5, 6]),
    )
    history.append(torch.tensor([1]), Continuations(None, numbers([END, 5]), numbers([0, 1])), weights([7, 8])[..., :1])
    ends = Finished(
        key=torch.tensor([[-1.0, -torch.inf], [-2.0, -3.0]], dtype=torch.float64),
        total=torch.tensor([[-1.0, -torch.inf], [-2.0, -3.0]], dtype=torch.float64),
        step=numbers([1, 0], [2, 2]),
        beam=numbers([1, 0], [0, 1]),
    )
    (first,), (second, third) = history.backtrace(ends, 0.0, torch.tensor([2, 1]))
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
        return Finished(keys, keys, torch.full_like(places, step), places)

    best = ends([-1.0, -3.0], 0).merge_best(ends([-3.0, -1.0, -2.0], 1))
    assert best.key.tolist() == [[-1.0, -1.0]]
    assert best.step.tolist() == [[0, 1]]
    assert best.beam.tolist() == [[0, 1]]
    kept = ends([-1.0, -3.0], 0).merge_best(ends([-3.0], 1))
    assert kept.step.tolist() == [[0, 0]]


def test_ends_are_kept_and_put_back_by_row():
    none = Finished.empty(3, 2, torch.device("cpu"))
    assert (none.key == -torch.inf).all()
    some = none.select(torch.tensor([1]))
    some = Finished(some.key + torch.inf, some.total, some.step + 4, some.beam + 5)
    put = none.scatter(torch.tensor([2]), some)
    assert put.step.tolist() == [[0, 0], [0, 0], [4, 4]]
    assert put.beam.tolist() == [[0, 0], [0, 0], [5, 5]]


def begin(*, beams=3, nbest=1, strength=0.0, longest=9):
    return Beams.start(torch.tensor([longest]), longest, strength, SearchOptions(nbest, beams))


def words(*rows):
    return torch.tensor([rows])


def test_open_beams_come_first():
    beams = begin(beams=3, nbest=3)
    chosen = beams.expand(words([-inf, -3.0, -inf, -1.0, -2.0, -inf]), 1)
    assert chosen.tokens.tolist() == [[4, 1, END]]
    assert chosen.totals.tolist() == [[-2.0, -3.0, -1.0]]
    after = beams.advance(chosen, 1)
    assert after.totals.tolist() == [[-2.0, -3.0, -inf]]
    assert after.open_beams.tolist() == [[2]]
    finished = after.finished
    assert (finished.key[0, 0].item(), finished.step[0, 0].item(), finished.beam[0, 0].item()) == (-1.0, 0, 2)


def test_a_closed_beam_is_not_opened_again():
    beams = begin(beams=2, nbest=2, longest=4)
    beams = beams.advance(beams.expand(words([-inf, -3.0, -inf, -1.0]), 1), 1)
    chosen = beams.expand(words([-inf, -1.0, -inf, -9.0], [-1.0, -1.0, -1.0, -1.0]), 2)
    assert chosen.totals.tolist() == [[-4.0, -inf]]


def test_a_beam_that_cannot_win_is_given_up_and_one_that_can_is_not():
    for strength, longest, active in (
        (0.0, 9, False),
        (1.0, 9, True),
        (1.0, 6, False),
        (1.0, 7, False),
        (1.0, 8, True),
    ):
        # END scores -1; the other can still reach -2 / ((5 + longest) / 6), which is -1 at 7: a tie is no gain.
        beams = begin(strength=strength, longest=longest)
        after = beams.advance(beams.expand(words([-inf, -2.0, -inf, -1.0]), 1), 1)
        assert after.is_active.tolist() == [active]


def test_a_log_probability_above_zero_does_not_raise_a_total():
    assert begin().expand(words([-inf, 1e-7, -inf, -inf]), 1).totals[0, 0] == 0.0


@pytest.mark.parametrize("shortest", [0, 3])
def test_greedy_follows_the_largest_word(shortest):
    table = random_table(20, 4, 6)
    found = found_in(table, table.state(), 20, beams=1, longest=4, shortest=shortest)
    options = {"beams": 1, "nbest": 1, "strength": 1.0, "longest": 4, "shortest": shortest, "forbidden": FORBIDDEN}
    for sentence, (one,) in enumerate(found):
        (wanted,) = plain_search.search(table, sentence, **options)
        assert (one.tokens, one.finished) == (wanted.tokens, wanted.finished)
        assert one.score == pytest.approx(wanted.score)
        assert one.log_probability == pytest.approx(wanted.total)
        assert one.length >= shortest


def test_of_equal_words_greedy_writes_the_smaller_token():
    table = Table(torch.full((1, 2, 6, 6), -2.0))
    assert found_in(table, table.state(), 1, beams=1, longest=2)[0][0].tokens == (1, 1)


@pytest.mark.parametrize("share", [0.125, 2.0])
def test_greedy_removes_finished_sentences(pace, share):
    pace(share=share)
    logits = torch.zeros(3, 3, 36, 6)
    logits[:2, 0, :, END] = 9.0
    logits[2, ..., 4] = 9.0
    table = Table(logits.log_softmax(-1))
    found = found_in(table, table.state(), 3, beams=1, longest=3)
    assert table.asked == ([(3, 1), (1, 1), (1, 1)] if share < 1 else [(3, 1)] * 3)
    assert [one.tokens for (one,) in found] == [(), (), (4, 4, 4)]


def test_greedy_reports_nan():
    table = random_table(2, 3, 5)
    table.log_probabilities[1, 0, 0, 0] = float("nan")
    with refuses("log_probabilities", "function", "sentence", "within"):
        found_in(table, table.state(), 2, beams=1, longest=3)


def test_greedy_refuses_when_nothing_can_be_written():
    table = Table(torch.full((1, 2, 5, 5), -torch.inf))
    with refuses("log_probabilities", "sentence 0"):
        found_in(table, table.state(), 1, beams=1, longest=2)


def test_one_model_is_itself_and_twins_too():
    table = random_table(3, 4, 6)
    alone = found_in(table, table.state(), 3, longest=4, nbest=3)
    for copies in (1, 2):
        states = EnsembleState((table.state(),) * copies)
        together = found_in(ensemble([table] * copies), states, 3, longest=4, nbest=3)
        for one, other in zip(chain(*alone), chain(*together), strict=True):
            assert one.tokens == other.tokens
            assert one.score == pytest.approx(other.score, abs=1e-5)
            torch.testing.assert_close(one.alignment, other.alignment)


def test_probabilities_and_weights_are_means():
    first, second = random_table(2, 1, 6), random_table(2, 1, 6, seed=1)

    def skewed(tokens, state):
        stepped = second(tokens, state)
        return StepOutput(stepped.log_probabilities, stepped.weights.flip(-1), stepped.state)

    begin = torch.full((2, 1), 2)
    both = ensemble([first, skewed])(begin, EnsembleState((first.state(), second.state())))
    mean = (first.log_probabilities[:, 0].exp() + second.log_probabilities[:, 0].exp()) / 2
    torch.testing.assert_close(both.log_probabilities.exp(), mean)
    one = first(begin, first.state()).weights
    torch.testing.assert_close(both.weights, (one + one.flip(-1)) / 2)


def test_alignments_survive_the_beam():
    toys, sources = [Toy(seed=0), Toy(seed=1)], random_sources(12)
    reads = [toy.read(sources) for toy in toys]
    states, lengths = EnsembleState(tuple(state for state, _ in reads)), reads[0][1]
    step = ensemble(toys)
    found = found_in(step, states, 12, longest=8, source_lengths=lengths)
    for row, (one,) in enumerate(found):
        state = EnsembleState(tuple(state.select(torch.tensor([row])) for state in states.states))
        with torch.no_grad():
            read = score_targets(step, state, torch.tensor([one.tokens]).long(), torch.tensor([len(one.tokens)]))
        torch.testing.assert_close(one.alignment, read.alignment(0, int(lengths[row]))[: one.length], rtol=0, atol=1e-5)


def test_models_without_attention_do_not_thin_the_weights():
    table = random_table(1, 1, 5)

    def blind(tokens, state):
        stepped = table(tokens, state)
        return StepOutput(stepped.log_probabilities, None, stepped.state)

    begin, states = torch.full((1, 1), 2), EnsembleState((table.state(), table.state()))
    torch.testing.assert_close(ensemble([blind, table])(begin, states).weights, table(begin, table.state()).weights)
    assert ensemble([blind, blind])(begin, states).weights is None


def test_a_word_that_both_exclude_stays_excluded():
    table = Table(torch.tensor([0.0, -torch.inf]).view(1, 1, 1, 2))
    both = ensemble([table, table])(torch.full((1, 1), 2), EnsembleState((table.state(), table.state())))
    assert both.log_probabilities.flatten().tolist() == pytest.approx([log(1), -torch.inf])


def test_models_that_do_not_fit_are_refused():
    table, wide = random_table(1, 1, 5), Table(random_table(1, 1, 5).log_probabilities, source=4)
    more = random_table(1, 1, 6)
    begin, states = torch.full((1, 1), 2), EnsembleState((table.state(), table.state()))
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
    read = score_targets(table, table.state(), targets, torch.tensor([3, 1, 0]))
    assert read.lengths.tolist() == [4, 2, 1]
    for row, words in enumerate([(4, 5, 1, END), (5, END), (END,)]):
        wanted = [plain_search.words_after(table, row, words[:place])[word] for place, word in enumerate(words)]
        assert read.log_probabilities[row].tolist() == pytest.approx(wanted + [0.0] * (4 - len(words)))
        assert read.totals[row] == pytest.approx(sum(wanted))
        assert read.alignment(row, 2).shape == (len(words), 2)
        assert (read.weights[row, len(words) :] == 0).all()


def test_what_stands_in_the_padding_is_not_heard():
    toy, sources = Toy(), random_sources(4)
    targets, lengths = torch.randint(4, 60, (4, 6)), torch.tensor([6, 2, 0, 4])
    with torch.no_grad():
        state, _ = toy.read(sources)
        once = score_targets(toy, state, targets, lengths)
        targets[torch.arange(6) >= lengths[:, None]] = PAD
        again = score_targets(toy, state, targets, lengths)
    assert torch.equal(once.log_probabilities, again.log_probabilities)


def test_gradients_flow():
    toy, sources = Toy(), random_sources(2)
    state, _ = toy.read(sources)
    score_targets(toy, state, torch.tensor([[4, 5], [6, 7]]), torch.tensor([2, 1])).totals.sum().backward()
    assert toy.words.weight.grad[4].abs().sum() > 0


def test_without_attention_and_without_sentences():
    table = random_table(2, 3, 5)

    def blind(tokens, state):
        stepped = table(tokens, state)
        return StepOutput(stepped.log_probabilities, None, stepped.state)

    read = score_targets(blind, table.state(), torch.tensor([[4], [1]]), torch.tensor([1, 1]))
    assert read.weights is None
    assert read.alignment(0, 3) is None
    none = score_targets(
        table, table.state(torch.arange(0)), torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0).long()
    )
    assert none.totals.tolist() == []


def test_nan_is_reported_only_where_it_counts():
    table = random_table(2, 3, 5)
    table.log_probabilities[0, 2] = float("nan")
    targets = torch.tensor([[4, 4], [4, 4]])
    assert score_targets(table, table.state(), targets, torch.tensor([1, 2])).totals.isfinite().all()
    with refuses("log_probabilities", "sentence 0"):
        score_targets(table, table.state(), targets, torch.tensor([2, 2]))


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
        score_targets(table, table.state(), targets, lengths)


def test_length():
    assert Hypothesis((4, 5), -1.0, -1.0, None).length == 3
    assert Hypothesis((4, 5), -1.0, -1.0, None, finished=False).length == 2


def test_a_maximum_length_below_the_minimum_cuts_a_sentence_off():
    table = random_table(2, 4, 6)
    (first,), (second,) = found_in(table, table.state(), 2, longest=torch.tensor([2, 4]), shortest=3)
    assert (first.length, first.finished) == (2, False)
    assert second.length >= 3
