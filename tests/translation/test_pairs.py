"""Pairs in a stream; every bad line is told with its number and reason, or refused."""

import gzip
import tracemalloc

import pytest
from tests.refuses import refuses

from regard.translation.bad_lines import BadLines, Reason
from regard.translation.pairs import MOST_OF_ALL, Pair, read_pairs, read_parallel

GOOD = [Pair("it 's one", "eins"), Pair("two", "zwei")]


@pytest.fixture
def file(tmp_path):
    def write(content, name="pairs.tsv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def read(reader, *paths, **options):
    bad = []
    return list(reader(*paths, report=bad.append, **options)), [(line.line, line.reason) for line in bad]


def test_two_columns_and_more(file):
    path = file("it &apos;s  one\teins\tCC-BY\tsomebody\r\ntwo\tzwei\n")
    assert list(read_pairs(path)) == GOOD
    assert list(read_pairs(str(path), reverse=True)) == [Pair(target, source) for source, target in GOOD]


def test_parallel_files_one_of_them_gzipped(file):
    sources, targets = file("it &apos;s one\ntwo\n", "a.en"), file(gzip.compress(b"eins\nzwei"), "a.de.gz")
    assert list(read_parallel(sources, targets)) == GOOD


BAD = [
    (b"no tab here", Reason.NO_TAB),
    (b"", Reason.EMPTY),
    (b"  \t ", Reason.EMPTY),
    (b"source\t", Reason.EMPTY),
    (b"\ttarget", Reason.EMPTY),
    (b"caf\xe9\tcoffee", Reason.BROKEN),
    (b"coffee\tcaf\xe9", Reason.BROKEN),
    (b"coffee\t" + b"x" * 91, Reason.RATIO),
    (b"x" * 91 + b"\tcoffee", Reason.RATIO),
    (b"x" * 201 + b"\t" + b"y" * 190, Reason.LONG),
    (b"y" * 190 + b"\t" + b"x" * 900, Reason.LONG),
]


@pytest.mark.parametrize(("line", "reason"), BAD)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_bad_line_is_skipped_and_told(file, line, reason, reverse):
    path = file(b"two\tzwei\n" + line + b"\ntwo\tzwei\n")
    pairs, bad = read(read_pairs, path, most_characters=200, reverse=reverse)
    assert len(pairs) == 2
    assert bad == [(2, reason)]


@pytest.mark.parametrize(("line", "reason"), [case for case in BAD if case[0].count(b"\t") == 1])
def test_the_same_in_parallel_files(file, line, reason):
    source, _, target = line.partition(b"\t")
    paths = file(b"two\n" + source + b"\ntwo\n", "source"), file(b"zwei\n" + target + b"\nzwei\n", "target")
    pairs, bad = read(read_parallel, *paths, most_characters=200)
    assert pairs == [Pair("two", "zwei")] * 2
    assert bad == [(2, reason)]


def test_short_lines_and_the_longest_allowed_pass(file):
    lines = ["好\tvery good indeed, thank you all", "x\t" + "y" * 90, "x" * 200 + "\t" + "é" * 200]
    pairs, bad = read(read_pairs, file("\n".join(lines)), most_characters=200)
    assert len(pairs) == 3
    assert not bad


def test_a_third_column_does_not_count(file):
    pairs, bad = read(read_pairs, file(b"two\tzwei\tcaf\xe9 " + b"z" * 10_000), most_characters=200)
    assert pairs == [Pair("two", "zwei")]
    assert not bad


def test_what_was_cut_off_is_never_taken_for_a_sentence(file):
    path = file("x" * MOST_OF_ALL + "\t" + "𝔘" * (MOST_OF_ALL + 1))
    assert read(read_pairs, path, most_characters=MOST_OF_ALL) == ([], [(1, Reason.LONG)])
    with refuses("most_characters", f"got {MOST_OF_ALL + 1}", f"1 to {MOST_OF_ALL}"):
        next(read_pairs(path, most_characters=MOST_OF_ALL + 1))


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
    bad = BadLines()
    assert list(read_pairs(file("one\n\ntwo\tzwei\nthree\n"), report=bad.add)) == [Pair("two", "zwei")]
    assert bad.counts == {Reason.NO_TAB: 2, Reason.EMPTY: 1}


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
