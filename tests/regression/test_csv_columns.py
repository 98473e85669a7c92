"""Columns of a CSV file are read, or refused with what is wrong."""

import tracemalloc

import numpy as np
import pytest
from tests.refuses import refuses

from regard.regression.csv_columns import read_columns

WANTED = [("x", "a"), ("y", "b")]


def file(tmp_path, text):
    path = tmp_path / "data.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n1,2\n3,4.5\n",
        "b,a\n2,1\n4.5,3\n",
        "a;b\n1;2\n3;4.5\n",
        "a\tb\n1\t2\n3\t4.5\n",
        "a|b\n1|2\n3|4.5",
        '"a","b"\r\n"1","2"\r\n"3","4.5"\r\n',
        "\ufeffa,b\n1,2\n3,4.5\n",
        "\n a , b \n\n1, 2\n 3 ,45e-1\n\n",
        "note,a,b\nx\u2028y\x0bz,1,2\n\x85,3,4.5\n",
        '"x, y; z",a,b\n"text, more",1,2\n"two\nlines",3,4.5\n',
    ],
)
def test_reads_what_programs_write(tmp_path, text):
    columns = read_columns("file", file(tmp_path, text), WANTED)
    np.testing.assert_array_equal(columns.numbers, [[1.0, 2.0], [3.0, 4.5]])
    assert columns.dropped == 0


def test_numbers_are_read_to_the_last_digit(tmp_path):
    numbers = [0.1, 1 / 3, 1e-308, 123456789.123456789]
    text = "a,b\n" + "\n".join(f"{number!r},0" for number in numbers)
    assert read_columns("file", file(tmp_path, text), WANTED).numbers[:, 0].tolist() == numbers


@pytest.mark.parametrize(
    ("text", "argument", "word"),
    [
        ("", "file", "data.csv, which is empty"),
        (" \n\n", "file", "which is empty"),
        ("\u00a0\n\x0c\n", "file", "which is empty"),
        ('"\u00a0"\n', "file", "which is empty"),
        (b"\xff\xfea,b", "file", "data.csv (not UTF-8 text)"),
        ("A1,b\n1,2\n", "x", "one of the columns 'A1', 'b'"),
        ("A,b\n1,2\n", "x", "one of the columns 'A', 'b'"),
        ("u,v\n1,2\n", "x", "one of the columns 'u', 'v'"),
        ("1,2\n3,4\n", "x", "one of the columns '1', '2'"),
        ("a,a,b\n1,2,3\n", "x", "'a', which 2 columns are called"),
        ("a,b\n1,2\n3,four\n", "file", "'four' in line 3 of data.csv, column 'b'"),
        ("a;b\n1,5;2\n", "file", "'1,5' in line 2 of data.csv, column 'a'"),
        ("a,b\n1_000,2\n", "file", "'1_000' in line 2"),
        ("a,b\n1,2,3\n", "file", "3 cells in line 2 of data.csv"),
        ('a,b\n1,"2\n', "file", "data.csv: unexpected end of data"),
        ("a,b\n1,\nNA,2\n3,4\ninf,5\n", "file", "3 of 4 rows"),
        ("a,b\n1,nan\n3,4\n", "file", ": line 2"),
    ],
)
def test_says_what_is_wrong_and_where(tmp_path, text, argument, word):
    with refuses(argument, word):
        read_columns("file", file(tmp_path, text), WANTED)


def test_names_only_the_first_of_many_lines(tmp_path):
    with refuses("file", "9 of 9 rows", ": lines 2, 3, 4, 5, 6,"):
        read_columns("file", file(tmp_path, "a,b\n" + "1,\n" * 9), WANTED)


def test_a_blank_elsewhere_does_not_matter(tmp_path):
    assert len(read_columns("file", file(tmp_path, "a,b,c\n1,2,\n3,4,text\n"), WANTED).numbers) == 2


def test_drops_what_is_missing_when_asked(tmp_path):
    columns = read_columns("file", file(tmp_path, "a,b\n1,\n3,4\nnull,2\n"), WANTED, drop_missing=True)
    assert columns.numbers.tolist() == [[3.0, 4.0]]
    assert columns.dropped == 2


def test_a_file_that_is_not_there(tmp_path):
    with refuses("predict_at", "none.csv (No such file or directory)"):
        read_columns("predict_at", tmp_path / "none.csv", WANTED)
    with refuses("file", "(Is a directory)"):
        read_columns("file", tmp_path, WANTED)


@pytest.mark.parametrize("text", [",\n", '"",""\n;;\n', " \t\n"])
def test_separators_alone_are_an_empty_file(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8")
    with refuses("file", "which is empty"):
        read_columns("file", path, [("x", "x")])


def test_a_column_is_asked_for_once(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("x,y\n1,2\n", encoding="utf-8")
    with refuses("y", "'x' a second time", "a column of its own for each"):
        read_columns("file", path, [("x", "x"), ("y", "x")])


def test_memory_is_that_of_the_chosen_columns(tmp_path):
    path = tmp_path / "wide.csv"
    with path.open("w", encoding="utf-8") as out:
        out.write("a,b,text\n")
        out.writelines(f"{i},{i},{'x' * 200}\n" for i in range(50_000))
    tracemalloc.start()
    columns = read_columns("file", path, WANTED)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert columns.numbers[-1].tolist() == [49_999.0, 49_999.0]
    assert peak < 4 * columns.numbers.nbytes + 2**20 < path.stat().st_size


def test_a_line_that_is_too_long_is_refused(tmp_path):
    with refuses("file", "data.csv, with a line of more"):
        read_columns("file", file(tmp_path, "a,b\n1," + "2" * 2**20), WANTED)
