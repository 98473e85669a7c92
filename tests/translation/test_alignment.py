"""Attention between tokens becomes attention between words; formats, pictures and measures of it."""

import json
from math import isnan, log

import numpy as np
import pytest
import torch
from tests.refuses import refuses

from regard.plots.fonts import MissingFontWarning
from regard.translation.alignment import (
    UNIFORM,
    Alignment,
    SpanAttention,
    corpus_span_attention,
    merge_to_words,
    normalized_entropy,
    plot_alignment,
    save_alignment,
    span_attention,
    to_json,
    to_pharaoh,
)
from regard.translation.corpora import Span
from regard.translation.dataset import Pair
from regard.translation.translator import Sentence, Translation
from regard.translation.vocabulary import learn_vocabulary

WEIGHTS = torch.tensor([[0.1, 0.7, 0.1], [0.4, 0.4, 0.1], [0.1, 0.1, 0.1]])


def alignment(weights=WEIGHTS):
    return Alignment(("the", "red", "house"), ("rotes", "das", "."), weights)


def test_from_tokens_merges_and_leaves_the_end_visible():
    weights = torch.tensor([[0.5, 0.2, 0.2, 0.1], [0.1, 0.3, 0.3, 0.3], [0.0, 0.0, 0.0, 1.0]], dtype=torch.float16)
    made = Alignment.from_tokens(
        weights.requires_grad_(),
        source_words=["a", "house"],
        target_words=["Haus"],
        source_word_indices=[0, 1, 1],
        target_word_indices=[0, 0],
    )
    assert made.weights[0].tolist() == pytest.approx([0.3, 0.5], abs=1e-3)
    assert made.unaligned.tolist() == pytest.approx([0.2], abs=1e-3)
    assert made.weights.dtype == torch.float32


def test_links_join_each_target_word_to_its_heaviest_source_word():
    assert alignment().links() == ((1, 0), (0, 1))
    assert alignment().links(threshold=0.5) == ((1, 0),)
    assert alignment().links(threshold=0.0) == ((1, 0), (0, 1), (0, 2))


def test_a_weight_of_exactly_the_threshold_is_a_link():
    even = alignment(torch.tensor([[0.25, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.2]]))
    assert even.links(threshold=0.25) == even.links() == ((0, 0), (1, 1))
    assert even.links(threshold=0.5) == ((1, 1),)


def test_an_empty_side_has_no_links():
    assert Alignment((), ("a",), torch.zeros(1, 0)).links() == ()
    assert Alignment(("a",), (), torch.zeros(0, 1)).links() == ()


@pytest.mark.parametrize(
    ("weights", "argument", "word"),
    [
        (torch.zeros(3, 4), "weights", "float32 (3, 4) on cpu"),
        (torch.full((3, 3), 0.5), "weights", "rows that sum to up to 1.5"),
        (WEIGHTS - 0.2, "weights", "entries from -0.1"),
        (torch.full((3, 3), float("nan")), "weights", "entries from nan"),
    ],
)
def test_what_is_no_attention_is_refused(weights, argument, word):
    with refuses(argument, word):
        alignment(weights)


def test_against_loops():
    weights = torch.rand(7, 5).softmax(-1)
    target, source = [0, 0, 1, -1, 2, 2, 2], [0, 1, 1, -1, 2]
    merged = merge_to_words(weights, target, source)
    assert merged.shape == (3, 3)
    for word in range(3):
        rows = [row for row, its in enumerate(target) if its == word]
        for other in range(3):
            columns = [column for column, its in enumerate(source) if its == other]
            wanted = sum(float(weights[row, column]) for row in rows for column in columns) / len(rows)
            assert float(merged[word, other]) == pytest.approx(wanted)


def test_a_whole_row_stays_whole_but_for_end():
    weights = torch.rand(4, 6).softmax(-1)
    merged = merge_to_words(weights, [0, 0, 1], [0, 0, 1, 2, 2])
    torch.testing.assert_close(merged.sum(1), torch.stack([1 - weights[:2, 5].mean(), 1 - weights[2, 5]]))
    torch.testing.assert_close(merged, merge_to_words(weights, [0, 0, 1, -1], [0, 0, 1, 2, 2, -1]))


def test_words_without_tokens_have_no_weight():
    merged = merge_to_words(torch.ones(1, 1), [1], [0], target_count=3, source_count=2)
    assert merged.tolist() == [[0, 0], [1, 0], [0, 0]]


def test_nothing_gives_nothing():
    assert merge_to_words(torch.ones(1, 2) / 2, [], [0]).shape == (0, 1)


@pytest.mark.parametrize(
    ("weights", "target", "source", "argument", "word"),
    [
        (torch.ones(3), [0], [0], "weights", "float32 (3,) on cpu"),
        (torch.ones(2, 2), [0, 0, 0], [0], "target_words", "words of 3 tokens"),
        (torch.ones(2, 2), [0], [], "source_words", "words of 0 tokens"),
        (torch.ones(2, 2), [0, -2], [0], "target_words", "numbers from -2 to 0"),
    ],
)
def test_bad_arguments_are_named(weights, target, source, argument, word):
    with refuses(argument, word):
        merge_to_words(weights, target, source)


def test_a_word_beyond_the_count_is_named():
    with refuses("source_words", "from 0", "to 2", "1 to"):
        merge_to_words(torch.ones(1, 3), [0], [0, 1, 2], source_count=2)


ALIGNMENT = Alignment(("das", "Haus"), ("房子", "的", "x"), torch.tensor([[0.25, 0.625], [0.75, 0.0], [0.125, 0.125]]))


def test_pharaoh_has_the_source_first():
    assert to_pharaoh(ALIGNMENT) == "1-0 0-1"
    assert to_pharaoh(ALIGNMENT, threshold=0.7) == "0-1"
    assert to_pharaoh(ALIGNMENT, threshold=0.9) == ""


def test_json_is_one_line_in_the_words_own_script():
    line = to_json(ALIGNMENT)
    assert "\n" not in line
    assert "房子" in line
    assert json.loads(line) == {
        "source": ["das", "Haus"],
        "target": ["房子", "的", "x"],
        "weights": [[0.25, 0.625], [0.75, 0.0], [0.125, 0.125]],
        "unaligned": [0.125, 0.25, 0.75],
    }


PICTURED = torch.tensor([[0.5, 0.25], [0.0, 1.0], [0.75, 0.25]])


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_source_across_target_down_and_the_rest_beside():
    axes = plot_alignment(Alignment(("the", "house"), ("das", "Haus", "!"), PICTURED)).axes[0]
    assert labels(axes.xaxis) == ["the", "house", "∅"]
    assert labels(axes.yaxis) == ["das", "Haus", "!"]
    shown = np.asarray(axes.images[0].get_array())
    np.testing.assert_allclose(shown, [[0.5, 0.25, 0.25], [0, 1, 0], [0.75, 0.25, 0]])
    assert axes.images[0].get_clim() == (0, 1)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("source", "target")


def test_words_stand_upright_and_blanks_are_seen():
    axes = plot_alignment(Alignment(("a" * 100, " "), ("x",), PICTURED[:1])).axes[0]
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {0}
    long, blank, _ = (label.strip() for label in labels(axes.xaxis))
    assert len(long) < 30
    assert long.endswith("…")
    assert blank == "␣"


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_any_script_is_drawn_and_what_no_font_writes_is_told(tmp_path, ending):
    words = ("日曜日", "วันที่", "שלום", "مرحبا", "$5", "한국", "_^{", chr(0xE0FFF))
    with pytest.warns(MissingFontWarning, match="No installed font"):
        path = save_alignment(Alignment(words, words, torch.eye(8)), tmp_path / f"picture.{ending}")
    assert path.stat().st_size > 1000
    if ending == "svg":
        text = path.read_text(encoding="utf-8")
        assert all(word in text for word in ("日曜日", "วันที่", "שלום", "$5", "한국"))


def test_the_same_alignment_is_the_same_file(tmp_path):
    made = [save_alignment(Alignment(("a", "b"), ("x", "y", "z"), PICTURED), tmp_path / f"{name}.svg") for name in "ab"]
    assert made[0].read_bytes() == made[1].read_bytes()


# Where no font writes Japanese, boxes are drawn, and are not cut off either.
@pytest.mark.filterwarnings("ignore::regard.plots.fonts.MissingFontWarning")
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 2), (2, 30), (30, 1), (3, 150)])
@pytest.mark.parametrize("word", ["i", "W" * 24, "日本語"])
def test_nothing_is_cut_off(rows, columns, word):
    figure = plot_alignment(Alignment((word,) * columns, (word,) * rows, torch.full((rows, columns), 1 / columns)))
    figure.draw_without_rendering()
    drawn, page = figure.get_tightbbox(), figure.get_size_inches()
    assert min(drawn.x0, drawn.y0, page[0] - drawn.x1, page[1] - drawn.y1) > -0.01
    assert page.max() < 24


def test_an_empty_sentence_or_an_unknown_format_is_refused(tmp_path):
    with refuses("alignment", "0 target words", "and 1"):
        plot_alignment(Alignment(("a",), (), torch.zeros(0, 1)))
    with refuses("out", "ends", "file", "name"):
        save_alignment(Alignment(("a",), ("b",), torch.ones(1, 1)), tmp_path / "picture.jpeg")


@pytest.mark.parametrize("source", [2, 7, 300])
def test_the_two_ends(source):
    uniform = torch.full((5, source), 1 / source)
    assert normalized_entropy(uniform) == pytest.approx(1.0)
    assert normalized_entropy(uniform) > UNIFORM
    certain = torch.zeros(5, source)
    certain[:, 1] = 1
    assert normalized_entropy(certain) == 0.0
    assert not normalized_entropy(certain) > UNIFORM


def test_between_them_it_is_entropy_over_its_maximum():
    weights = torch.rand(4, 6).softmax(-1).double()
    wanted = [-sum(w * log(w) for w in row) / log(6) for row in weights.tolist()]
    assert normalized_entropy(weights) == pytest.approx(sum(wanted) / 4)


def test_a_source_of_one_token_says_nothing():
    assert isnan(normalized_entropy(torch.ones(3, 1)))
    assert not normalized_entropy(torch.ones(3, 1)) > UNIFORM


def test_untrained_attention_is_uniform_and_peaked_attention_is_not():
    assert normalized_entropy((torch.randn(20, 15) * 0.3).softmax(-1)) > UNIFORM
    assert not normalized_entropy((torch.randn(20, 15) * 1.5).softmax(-1)) > UNIFORM


def test_bad_shapes_are_named():
    with refuses("weights", "(3,)"):
        normalized_entropy(torch.ones(3))
    with refuses("weights", "(2, 3, 4)"):
        normalized_entropy(torch.ones(2, 3, 4))


# "3 May" -> "05-03": May says 05, 3 says 03; the hyphen is said by nothing.
TRUTH = [Span((0, 2), ((2, 5),)), Span((3, 5), ((0, 1),))]
SOURCE = [(0, 1), (1, 2), (2, 4), (4, 5)]  # 3, blank, Ma, y
TARGET = [(0, 1), (1, 2), (2, 3), (3, 5)]  # 0, 5, -, 03


def test_mass_on_the_right_tokens_only():
    weights = torch.tensor(
        [
            [0.1, 0.1, 0.3, 0.4, 0.1],
            [0.0, 0.0, 0.5, 0.0, 0.5],
            [0.2, 0.2, 0.2, 0.2, 0.2],
            [0.9, 0.1, 0.0, 0.0, 0.0],
            [0.0, 0.0, 0.0, 0.0, 1.0],
        ]
    )
    found = span_attention(weights, TARGET, SOURCE, TRUTH)
    assert found.tokens == 3
    assert found.mass == pytest.approx(0.7 + 0.5 + 0.9)
    assert found.share == pytest.approx(0.7)
    with_end = span_attention(weights, [*TARGET, (5, 5)], [*SOURCE, (5, 5)], TRUTH)
    assert with_end == found


def test_a_token_over_two_spans_may_look_at_both_and_a_span_may_come_in_pieces():
    truth = [Span((0, 2), ((0, 1), (4, 5))), Span((2, 4), ((2, 3),))]
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.15, 0.25]])
    found = span_attention(weights, [(1, 3)], [(i, i + 1) for i in range(5)], truth)
    assert found == SpanAttention(pytest.approx(0.65), 1)


def test_right_everywhere_is_one_and_nothing_to_judge_is_nan():
    perfect = torch.tensor([[0.0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0], [1, 0, 0, 0]])
    assert span_attention(perfect, TARGET, SOURCE, TRUTH).share == 1.0
    nothing = span_attention(perfect, TARGET, SOURCE, [])
    assert nothing.tokens == 0
    assert isnan(nothing.share)
    assert (nothing + SpanAttention(1.5, 2)).share == 0.75


@pytest.mark.parametrize(
    ("weights", "target", "source", "argument", "word"),
    [
        (torch.ones(2), TARGET, SOURCE, "weights", "float32"),
        (torch.ones(4, 4), TARGET[:2], SOURCE, "target_spans", "2 tokens"),
        (torch.ones(4, 4), TARGET, [*SOURCE, (5, 6)], "source_spans", "5 tokens"),
    ],
)
def test_bad_arguments_of_spans_are_named(weights, target, source, argument, word):
    with refuses(argument, word):
        span_attention(weights, target, source, TRUTH)


WORDS = learn_vocabulary("words", ["one two 1 2 and"])


def sentence(text):
    return Sentence(text, tuple(WORDS.encode(text)), WORDS)


def given(example, weights):
    return Translation(sentence(example.source), sentence(example.target), 0.0, 0.0, weights=weights)


TWO = Pair("one two", "1 2", (Span((0, 1), ((0, 3),)), Span((2, 3), ((4, 7),))), "2")
ONE = Pair("two", "2 and", (Span((0, 1), ((0, 3),)),), "1")


def test_the_mass_is_the_mean_over_tokens_that_have_a_counterpart():
    first = given(TWO, torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3], [0.0, 0.0, 1.0]]))
    second = given(ONE, torch.tensor([[0.1, 0.9], [1.0, 0.0], [0.0, 1.0]]))
    assert corpus_span_attention([first, second], [TWO, ONE]) == pytest.approx((0.9 + 0.5 + 0.1) / 3)


def test_without_attention_there_is_no_share():
    assert corpus_span_attention([given(TWO, None)], [TWO]) is None
