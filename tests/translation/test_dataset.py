"""Pairs come out of any file, bad lines are named, splits share no sentence, and options that conflict are refused."""

import gzip
import tracemalloc
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.refuses import refuses
from tests.translation.toy_trainings import make_corpus, make_pairs, make_recipe, write_tsv

from regard.translation.dataset import (
    MAX_CHARACTERS_OF_TEST,
    BadLine,
    BadLineCounts,
    BadLineReason,
    Corpus,
    Pair,
    Span,
    check_sizes,
    learn_vocabularies,
    read_corpus,
    read_pairs,
    read_parallel,
    split,
)
from regard.translation.options import CorpusOptions, HeldOutOptions
from regard.translation.vocabulary import UNKNOWN

GOOD = [Pair("it 's one", "eins"), Pair("two", "zwei")]


@pytest.fixture
def file(tmp_path):
    def write(content, name="pairs.tsv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def pairs_and_bad(reader, *paths, **options):
    bad = []
    return list(reader(*paths, report=bad.append, **options)), [(line.line, line.reason) for line in bad]


def test_two_columns_and_more(file):
    path = file("it &apos;s  one\teins\tCC-BY\tsomebody\r\ntwo\tzwei\n")
    assert list(read_pairs(path)) == GOOD
    assert list(read_pairs(str(path), reverse=True)) == [Pair(pair.target, pair.source) for pair in GOOD]


def test_parallel_files_one_of_them_gzipped(file):
    sources, targets = file("it &apos;s one\ntwo\n", "a.en"), file(gzip.compress(b"eins\nzwei"), "a.de.gz")
    assert list(read_parallel(sources, targets)) == GOOD


BAD = [
    (b"no tab here", BadLineReason.NO_TAB),
    (b"", BadLineReason.EMPTY),
    (b"  \t ", BadLineReason.EMPTY),
    (b"source\t", BadLineReason.EMPTY),
    (b"\ttarget", BadLineReason.EMPTY),
    (b"caf\xe9\tcoffee", BadLineReason.BROKEN),
    (b"coffee\tcaf\xe9", BadLineReason.BROKEN),
    (b"coffee\t" + b"x" * 91, BadLineReason.RATIO),
    (b"x" * 91 + b"\tcoffee", BadLineReason.RATIO),
    (b"x" * 201 + b"\t" + b"y" * 190, BadLineReason.LONG),
    (b"y" * 190 + b"\t" + b"x" * 900, BadLineReason.LONG),
]


@pytest.mark.parametrize(("line", "reason"), BAD)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_bad_line_is_skipped_and_told(file, line, reason, reverse):
    path = file(b"two\tzwei\n" + line + b"\ntwo\tzwei\n")
    pairs, bad = pairs_and_bad(read_pairs, path, max_characters=200, reverse=reverse)
    assert len(pairs) == 2
    assert bad == [(2, reason)]


@pytest.mark.parametrize(("line", "reason"), [case for case in BAD if case[0].count(b"\t") == 1])
def test_the_same_in_parallel_files(file, line, reason):
    source, _, target = line.partition(b"\t")
    paths = file(b"two\n" + source + b"\ntwo\n", "source"), file(b"zwei\n" + target + b"\nzwei\n", "target")
    pairs, bad = pairs_and_bad(read_parallel, *paths, max_characters=200)
    assert pairs == [Pair("two", "zwei")] * 2
    assert bad == [(2, reason)]


def test_short_lines_and_the_longest_allowed_pass(file):
    lines = ["好\tvery good indeed, thank you all", "x\t" + "y" * 90, "x" * 200 + "\t" + "é" * 200]
    pairs, bad = pairs_and_bad(read_pairs, file("\n".join(lines)), max_characters=200)
    assert len(pairs) == 3
    assert not bad


def test_a_third_column_does_not_count(file):
    pairs, bad = pairs_and_bad(read_pairs, file(b"two\tzwei\tcaf\xe9 " + b"z" * 10_000), max_characters=200)
    assert pairs == [Pair("two", "zwei")]
    assert not bad


def test_what_was_cut_off_is_never_taken_for_a_sentence(file):
    path = file("x" * MAX_CHARACTERS_OF_TEST + "\t" + "𝔘" * (MAX_CHARACTERS_OF_TEST + 1))
    assert pairs_and_bad(read_pairs, path, max_characters=MAX_CHARACTERS_OF_TEST) == ([], [(1, BadLineReason.LONG)])
    with refuses("max_characters", f"got {MAX_CHARACTERS_OF_TEST + 1}", f"1 to {MAX_CHARACTERS_OF_TEST}"):
        next(read_pairs(path, max_characters=MAX_CHARACTERS_OF_TEST + 1))


@pytest.mark.parametrize("longer", [0, 1])
def test_one_file_has_more_lines(file, longer):
    contents = ["one\ntwo\n", "eins\nzwei\n"]
    contents[longer] += "three\nfour\n"
    paths = file(contents[0], "source"), file(contents[1], "target")
    told = []
    assert len(list(read_parallel(*paths, report=told.append))) == 2
    names = ["source", "target"]
    assert [str(bad) for bad in told] == [
        f"{names[longer]}, line 3: no counterpart, since the other file has ended ({names[1 - longer]} has 2 lines)"
    ]
    with refuses("source, target", "line 3"):
        list(read_parallel(*paths))


@pytest.mark.parametrize("options", [{}, {"strict": True}, {"strict": True, "report": print}])
def test_the_first_bad_line_is_refused(file, options, capsys):
    reading = read_pairs(file("one\teins\ntwo\nthree\n"), **options)
    assert next(reading) == Pair("one", "eins")
    with refuses("pairs", "line 2", "'two'"):
        next(reading)
    assert not capsys.readouterr().out


def test_where_the_bad_line_is_and_what_it_looks_like(file):
    with refuses("pairs", "line 1", "(byte 4 of the target, 'caf�')"):
        list(read_pairs(file(b"coffee\tcaf\xe9")))
    with refuses("pairs", "(7 characters against 95)"):
        list(read_pairs(file("seven77\t" + "x" * 95)))


def test_a_count_by_reason(file):
    bad = BadLineCounts()
    assert list(read_pairs(file("one\n\ntwo\tzwei\nthree\n"), report=bad.add)) == [Pair("two", "zwei")]
    assert bad.counts == {BadLineReason.NO_TAB: 2, BadLineReason.EMPTY: 1}


@pytest.mark.parametrize("packed", [False, True])
def test_memory_does_not_grow_with_the_file(file, packed):
    content = b"a sentence of some length\tein Satz von einiger L\xc3\xa4nge\n" * 15_000 + b"x" * 4_000_000
    path = file(gzip.compress(content, 1) if packed else content)
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_pairs(path, report=lambda bad: None)) == 15_000
        assert tracemalloc.get_traced_memory()[1] < 3_500_000 < len(content)
    finally:
        tracemalloc.stop()


def test_nothing_bad():
    assert str(BadLineCounts()) == "no lines skipped"
    assert len(BadLineCounts()) == 0


def test_one_line_of_summary_with_the_most_frequent_first():
    bad = BadLineCounts()
    bad.add(BadLine("a.tsv", 2, BadLineReason.BROKEN, "byte 1"))
    for number in (5, 9):
        bad.add(BadLine("a.tsv", number, BadLineReason.NO_TAB, "'x'"))
    assert len(bad) == 3
    assert bad.counts == {BadLineReason.NO_TAB: 2, BadLineReason.BROKEN: 1}
    assert str(bad) == (
        "3 lines skipped: 2 with no tab between source and target (first: line 5 of a.tsv), "
        "1 with broken UTF-8 (first: line 2 of a.tsv)"
    )


PAIRS = [Pair(f"sentence {number}", f"Satz {number}") for number in range(4000)]


class Parts(NamedTuple):
    train: tuple[Pair, ...]
    valid: tuple[Pair, ...]
    test: tuple[Pair, ...]


def parts(*given, **options):
    """What `split` returns, by name."""
    return Parts(*split(*given, **options))


def part_of(found):
    return {pair: part for part in ("train", "valid", "test") for pair in getattr(found, part)}


def test_shares_are_about_what_was_asked():
    found = parts(PAIRS, valid=0.1, test=0.2)
    assert len(found.valid) == pytest.approx(400, abs=80)  # four standard deviations
    assert len(found.test) == pytest.approx(800, abs=105)
    assert sorted([*found.train, *found.valid, *found.test]) == sorted(PAIRS)


def test_this_very_split():
    """The parts of a corpus must not change from version to version: results would leak."""
    found = parts(PAIRS[:60], valid=0.05, test=0.05, seed=3)
    assert [pair.source for pair in found.valid] == ["sentence 7", "sentence 9", "sentence 19"]
    assert [pair.source for pair in found.test] == ["sentence 6", "sentence 23", "sentence 48", "sentence 59"]


def test_a_sentence_stays_in_its_part_however_it_is_written_or_translated():
    twins = [Pair(f" sentence\u00a0 {number}", f"Phrase {number}") for number in range(400)]
    where = part_of(parts(PAIRS + twins, valid=0.2, test=0.2))
    assert all(where[twin] == where[pair] for twin, pair in zip(twins, PAIRS, strict=False))


@given(st.permutations(PAIRS[:60]), st.integers(30, 60))
def test_other_pairs_and_their_order_do_not_matter(shuffled, count):
    some = part_of(parts(shuffled[:count], valid=0.3, test=0.3))
    assert some.items() <= part_of(parts(PAIRS[:60], valid=0.3, test=0.3)).items()


def test_the_seed_matters_and_the_order_is_kept():
    first, second = (parts(PAIRS[:300], valid=0.1, test=0.1, seed=seed) for seed in (0, 1))
    assert first.test != second.test
    assert list(first.train) == sorted(first.train, key=PAIRS.index)


def test_a_pair_keeps_its_spans_and_label():
    pairs = [Pair(str(number), "x", (Span((0, 1), ((0, 1),)),), label=str(number)) for number in range(100)]
    found = parts(pairs, valid=0.2, test=0)
    assert found.test == ()
    assert sorted([*found.train, *found.valid]) == sorted(pairs)


@pytest.mark.parametrize(
    ("shares", "argument", "word"),
    [
        ({"valid": -0.1}, "valid", "-0.1"),
        ({"test": 1.0}, "test", "1.0"),
        ({"valid": 0.5, "test": 0.5}, "valid, test", "0.5 and 0.5"),
        ({"valid": float("nan")}, "valid", "nan"),
    ],
)
def test_shares_that_make_no_sense(shares, argument, word):
    with refuses(argument, word):
        parts(PAIRS, **shares)


def test_a_part_without_a_pair_is_refused():
    with refuses("valid", "of 3"):
        parts(PAIRS[:3], valid=1e-9, test=0)
    with refuses("pairs", "of 0"):
        parts([])


def test_what_is_accepted():
    check_sizes(1, 1, 1)
    check_sizes(10**6, 5, 5, max_held_out=10)


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_an_empty_part_is_refused(part):
    with refuses(part, "at least one example"):
        check_sizes(**({"train": 1, "valid": 1, "test": 1} | {part: 0}))


def test_too_many_held_out():
    with refuses("valid, test", "5 and", "10"):
        check_sizes(1, 5, 6, max_held_out=10)


def test_vocabularies_know_training_data_only():
    corpus = Corpus("toy", (Pair("one two", "1 2"),), (Pair("three", "3"),))
    source, target = learn_vocabularies(make_recipe(), corpus.train)
    assert UNKNOWN not in (*source.encode("two one"), *target.encode("2 1"))
    assert source.encode("three") == target.encode("3") == [UNKNOWN]


def test_a_joint_vocabulary_is_one_object_that_knows_both_sides():
    source, target = learn_vocabularies(make_recipe(joint=True), make_pairs(30))
    assert source is target
    assert UNKNOWN not in source.encode("one 1")


@pytest.mark.parametrize("joint", [False, True])
def test_a_vocabulary_too_small_for_the_characters_is_named_as_in_the_recipe(joint):
    recipe = make_recipe(source_unit="bpe", target_unit="bpe", vocabulary_size=8, joint=joint)
    with refuses("vocabulary_size", "special tokens", "every", "least"):
        learn_vocabularies(recipe, make_pairs(30))


def test_another_refusal_of_a_vocabulary_stays_as_it_is():
    with refuses("texts", "nothing", "learnt"):
        learn_vocabularies(make_recipe(source_unit="bpe"), [Pair("▁", "1")])


@pytest.mark.parametrize("part", ["train", "valid"])
def test_a_corpus_without_a_part_is_refused(part):
    parts = {"train": make_pairs(2), "valid": make_pairs(1)} | {part: ()}
    with refuses(part, "no pairs in toy"):
        Corpus("toy", **parts)


def test_the_fingerprint_is_that_of_training_and_validation():
    corpus = make_corpus()
    assert corpus.fingerprint() == make_corpus().fingerprint()
    assert corpus.fingerprint() != make_corpus(seed=5).fingerprint()
    assert corpus.fingerprint() != Corpus("toy", corpus.train[:-1], corpus.valid).fingerprint()


TOYS = make_pairs(300, longest=6)


def options(**given):
    """The options of a corpus, and those of what is held out of it."""
    held_out = {name: given.pop(name) for name in list(given) if name.startswith(("valid_", "test_"))}
    return CorpusOptions(**given), HeldOutOptions(**held_out)


def read(given, report=None):
    return read_corpus(*given, report)


@pytest.fixture
def tsv(tmp_path):
    return write_tsv(tmp_path / "pairs.tsv", TOYS)


def test_pairs_are_split_by_source_sentence_and_alike_each_time(tsv):
    corpus = read(options(pairs=tsv, valid_share=0.1, test_share=0.1))
    parts = [{pair.source for pair in part} for part in (corpus.train, corpus.valid, corpus.test)]
    assert all(parts)
    assert not parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2]
    assert sorted([*corpus.train, *corpus.valid, *corpus.test]) == sorted(TOYS)
    assert read(options(pairs=tsv, valid_share=0.1, test_share=0.1)) == corpus
    assert corpus.name == "pairs.tsv"


def test_files_for_validation_leave_all_pairs_to_train(tsv, tmp_path):
    valid = write_tsv(tmp_path / "valid.tsv", TOYS[:7])
    corpus = read(options(pairs=tsv, valid_pairs=valid))
    assert (corpus.train, corpus.valid, corpus.test) == (TOYS, TOYS[:7], ())


def test_two_files_and_two_more_gzipped_or_not(tmp_path):
    paths = {}
    for side in ("source", "target"):
        text = "".join(f"{getattr(pair, side)}\n" for pair in TOYS)
        paths[side] = tmp_path / f"train.{side}"
        paths[side].write_text(text, encoding="utf-8")
        paths[f"valid_{side}"] = tmp_path / f"valid.{side}.gz"
        paths[f"valid_{side}"].write_bytes(gzip.compress(text.encode()))
    corpus = read(options(**paths))
    assert corpus.train == corpus.valid == TOYS


def test_the_second_column_may_be_the_source(tsv, tmp_path):
    valid = write_tsv(tmp_path / "valid.tsv", TOYS[:2])
    corpus = read(options(pairs=tsv, reverse=True, valid_pairs=valid))
    assert corpus.train[0] == Pair(TOYS[0].target, TOYS[0].source)
    assert corpus.valid[0] == Pair(TOYS[0].target, TOYS[0].source)


def test_bad_lines_are_told_one_by_one_and_then_in_all(tsv, capsys):
    with tsv.open("a", encoding="utf-8") as more:
        more.write("no tab\n" * 6 + "\tempty\n")
    told = []
    read(options(pairs=tsv, valid_share=0.1, test_share=0.1), told.append)
    assert len(told) == 6
    assert told[0] == "skipped pairs.tsv, line 301: no tab between source and target ('no tab')"
    assert told[-1].startswith(
        "7 lines skipped: 6 with no tab between source and target (first: line 301 of pairs.tsv)"
    )
    read(options(pairs=tsv, valid_share=0.1, test_share=0.1))
    assert capsys.readouterr().err.splitlines() == [f"regard: {line}" for line in told]
    with refuses("pairs", "301"):
        read(options(pairs=tsv, strict=True))


def test_few_bad_lines_need_no_summary(tsv):
    with tsv.open("a", encoding="utf-8") as more:
        more.write("no tab\n")
    told = []
    read(options(pairs=tsv, valid_share=0.1, test_share=0.1), told.append)
    assert len(told) == 1


def test_a_built_in_corpus_brings_its_parts():
    corpus = read(options(corpus="lists"))
    assert corpus.name == "lists"
    assert len(corpus.train) > len(corpus.test) > 0


@pytest.mark.parametrize(
    ("given", "argument", "word"),
    [
        ({}, "train", "no sentence pairs"),
        ({"corpus": "dates", "pairs": "a"}, "train", "several corpora"),
        ({"pairs": "a", "source": "b", "target": "c"}, "train", "several corpora"),
        ({"source": "a"}, "target", "none"),
        ({"target": "a"}, "source", "none"),
        ({"pairs": "a", "valid_source": "b"}, "valid_target", "none"),
        (
            {"pairs": "a", "valid_pairs": "b", "valid_source": "c", "valid_target": "d"},
            "valid_pairs",
            "--valid-source too",
        ),
        ({"corpus": "dates", "language": "de"}, "language", "the corpus numbers"),
        ({"source": "a", "target": "b", "reverse": True}, "reverse", "no --pairs"),
        ({"corpus": "dates", "valid_pairs": "a"}, "valid_pairs", "the corpus dates"),
        ({"corpus": "dates", "valid_share": 0.5}, "valid_share", "the corpus dates"),
        ({"corpus": "dates", "valid_target": "a"}, "valid_source", "none"),
        (
            {"pairs": "a", "valid_share": 0},
            "valid_share",
            "a share of the pairs, or",
        ),
    ],
)
def test_what_does_not_go_together_is_named(given, argument, word):
    with refuses(argument, word):
        corpus, held_out = options(**given)
        corpus.check_one_corpus("train")
        held_out.check_fits(corpus)


@pytest.mark.parametrize("missing", ["pairs", "source", "target"])
def test_a_missing_file_to_validate_on_is_not_blamed_on_the_pairs_to_train_on(tsv, tmp_path, missing):
    given = ("valid_pairs",) if missing == "pairs" else ("valid_source", "valid_target")
    paths = {name: tmp_path / name for name in given}
    for name, path in paths.items():
        if name != f"valid_{missing}":
            path.write_text("one\n", encoding="utf-8")
    with refuses(f"valid_{missing}", "No such file"):
        read(options(pairs=tsv, **paths))


def test_files_without_a_pair_to_validate_on_are_named_with_their_flags(tsv, tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.touch()
    other.touch()
    for flags, files in (
        ({"valid_pairs": one}, f"{one}"),
        ({"valid_source": one, "valid_target": other}, f"{one} and {other}"),
    ):
        with refuses(", ".join(flags), f"no pairs in {files}"):
            read(options(pairs=tsv, **flags))


@pytest.mark.parametrize(
    ("shares", "argument", "word"),
    [
        ({"valid_share": -0.1}, "valid_share", "-0.1"),
        ({"test_share": 1.0}, "test_share", "a share from 0"),
        ({"valid_share": 0.5, "test_share": 0.5}, "valid_share, test_share", "0.5 and 0.5"),
        ({"valid_share": 1e-9}, "valid_share", "no pair for valid out of 300"),
    ],
)
def test_shares_that_make_no_sense_are_named_by_their_flags(tsv, shares, argument, word):
    with refuses(argument, word):
        read(options(pairs=tsv, **shares))


def test_a_corpus_that_is_not_built_in():
    with refuses("corpus", "'poems'", "'dates'", "'numbers'"):
        read(options(corpus="poems"))
