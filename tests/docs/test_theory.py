"""The theory pages: every equation once, each beside code that exists and says the same number."""

import ast
import re

import pytest
from tests.docs.pages import DOCS, PAGES, name_of

TAG = re.compile(r"\\tag\{(\d+)\}")
INCLUDED = re.compile(r"^```\{literalinclude\} (\S+)\n:pyobject: (\S+)\n:caption: (\S+)\n```$", re.MULTILINE)
THEORY = sorted((DOCS / "theory").glob("*.md"))


def included():
    return [(page, *found) for page in PAGES for found in INCLUDED.findall(page.read_text(encoding="utf-8"))]


def definitions(path):
    """Dotted names of all functions and classes of a file."""

    def inside(node, before):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                yield f"{before}{child.name}"
                yield from inside(child, f"{before}{child.name}.")

    return set(inside(ast.parse(path.read_text(encoding="utf-8")), ""))


def test_every_equation_of_the_chapter_has_its_place():
    found = [int(tag) for page in THEORY for tag in TAG.findall(page.read_text(encoding="utf-8"))]
    assert sorted(found) == list(range(1, 15))


@pytest.mark.parametrize("page", [page for page in THEORY if TAG.search(page.read_text())], ids=name_of)
def test_an_equation_stands_beside_the_code_that_computes_it(page):
    assert INCLUDED.search(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("page", "path", "name", "caption"), included())
def test_the_code_that_is_shown_exists(page, path, name, caption):
    file = (page.parent / path).resolve()
    assert file.is_file()
    assert file.as_posix().endswith(caption)
    assert name in definitions(file)


def test_the_table_of_the_theory_leads_to_the_right_pages():
    rows = re.findall(r"^\| ([\d, ]+) \|.*\((\S+)\.md\) \|$", (DOCS / "theory/index.md").read_text(), re.MULTILINE)
    told = {page: [int(number) for number in numbers.split(", ")] for numbers, page in rows}
    for page, numbers in told.items():
        text = (DOCS / "theory" / f"{page}.md").read_text(encoding="utf-8")
        assert [int(tag) for tag in TAG.findall(text)] == numbers
    assert [number for numbers in told.values() for number in numbers] == list(range(1, 15))
