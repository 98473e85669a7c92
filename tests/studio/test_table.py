"""CSV text as points: the columns that hold numbers, by name or by guess, and sentences for bad files."""

import pytest

from regard.studio.limits import MOST_POINTS


def ask(client, text, **columns):
    return client.post("/api/regression/table", json={"text": text, **columns})


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_first_two_columns_of_numbers(client, separator):
    lines = ["who,height,age", "a,1.5,30", "b,2.5,-4e1"]
    answer = ask(client, "\n".join(lines).replace(",", separator)).json()
    assert answer == {
        "columns": ["who", "height", "age"], "x_name": "height", "y_name": "age",
        "x": [1.5, 2.5], "y": [30, -40], "dropped": 0,
    }  # fmt: skip


def test_columns_by_name(client):
    answer = ask(client, "a,b,c\n1,2,3\n", x="c", y="a").json()
    assert (answer["x"], answer["y"]) == ([3], [1])


def test_blanks_around_names_and_missing_first_cells_do_not_matter(client):
    answer = ask(client, "a , b, who\nNA,2,x\n3,,y\n5,6,z\n").json()
    assert (answer["x_name"], answer["y_name"], answer["x"], answer["dropped"]) == ("a", "b", [5], 2)


def test_one_column_by_name_and_the_other_by_guess(client):
    answer = ask(client, "a,b\n1,2\n", x="b").json()
    assert (answer["x_name"], answer["y_name"]) == ("b", "a")


def test_numbers_without_names(client):
    answer = ask(client, "\ufeff1,2\r\n3,4\r\n\r\n").json()
    assert (answer["columns"], answer["x"], answer["y"]) == (["column 1", "column 2"], [1, 3], [2, 4])


def test_rows_with_a_missing_number_are_counted(client):
    answer = ask(client, "a,b\n1,2\nNA,3\n4,\n5,6\n").json()
    assert (answer["x"], answer["dropped"]) == ([1, 5], 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "file: got an empty file"),
        ("  \n\n", "file: got an empty file"),
        ("a,b\n", "file: got the columns 'a', 'b'; needed two columns of numbers"),
        ("a\n1\n", "file: got the columns 'a'; needed two columns of numbers"),
        ("a,b\n1,2\n1,2,3\n", "file: got 3 cells in line 3"),
        ("a,b\n1,2\nx,4\n", "file: got 'x' in line 3 of file.csv, column 'a'"),
        ('a,b\n1,2\n"3,4\n', "file: got file.csv: unexpected end of data"),
        ("a;b\n1;2\n1,5;2\n", "Write a decimal point, not a comma."),
        ("a,b\n" + "1,2\n" * (MOST_POINTS + 1), "file: got 5,001 rows of numbers; needed 1 to 5,000"),
        ("a,b\n" + "x" * 200_000 + ",2\n", "file: got field larger than field limit"),
    ],
)
def test_bad_files(client, text, said):
    answer = ask(client, text)
    assert answer.status_code == 422
    assert said in answer.json()["error"]


def test_a_column_that_is_not_there(client):
    answer = ask(client, "alpha,beta\n1,2\n", x="alpa")
    assert "Did you mean 'alpha'?" in answer.json()["error"]


@pytest.mark.parametrize("sign", ["\x85", "\u2028", "\x0c"], ids=ascii)
def test_what_ends_no_line_in_csv_ends_none_here(client, sign):
    told = ask(client, f"n,a,b\nx{sign}y,1,2\nq,2,3\n").json()
    assert (told["x"], told["y"]) == ([1, 2], [2, 3])


def test_a_name_of_two_lines(client):
    told = ask(client, '"a\nb",c\n1,2\n2,3\n').json()
    assert (told["x_name"], told["x"], told["y"]) == ("a\nb", [1, 2], [2, 3])


def test_a_first_line_is_numbers_by_the_rule_for_cells(client):
    """`1_000` is a number in Python and none in a cell: it names a column."""
    answer = client.post("/api/regression/table", json={"text": "1_000,2\n3,4\n5,6\n"})
    assert answer.status_code == 200
    assert answer.json()["columns"] == ["1_000", "2"]
    assert answer.json()["x"] == [3.0, 5.0]
