"""The API reference: every public name of every room, and no other; every page is in a table of contents."""

import re
from importlib import import_module

import pytest
from tests.docs.pages import DOCS, PAGES, name_of

import regard

ENTRY = re.compile(r"^\.\. auto(?:function|class|exception|data):: (\S+)$", re.MULTILINE)
MODULE = re.compile(r"^\.\. currentmodule:: (\S+)$", re.MULTILINE)
LINK = re.compile(r"\]\(([\w./-]+\.md)(?:#[\w-]+)?\)")


def documented():
    """Every entry of the reference: its module and its name."""
    texts = [page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md")]
    return {(module, name) for text in texts for module in MODULE.findall(text) for name in ENTRY.findall(text)}


def objects():
    return {id(getattr(import_module(module), name)) for module, name in documented()}


@pytest.mark.parametrize("room", ["scores", "layers", "masks", "regression", "translation", "plots", "testing"])
def test_every_public_name_of_a_room_is_described(room):
    module = import_module(f"regard.{room}")
    public = getattr(module, "__all__", None) or ["Mask"]
    missing = [name for name in public if id(getattr(module, name)) not in objects()]
    assert missing == []


def test_every_public_name_of_the_package_is_described():
    missing = [name for name in regard.__all__ if name != "scores" and id(getattr(regard, name)) not in objects()]
    assert missing == []


def test_what_is_described_has_a_docstring():
    assert all(getattr(import_module(module), name).__doc__ for module, name in documented())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page):
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).resolve().is_file(), target


def test_every_page_is_in_a_table_of_contents():
    listed = {"index"}
    for page in PAGES:
        for table in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            names = [line for line in table.splitlines() if line and not line.startswith(":")]
            listed |= {name_of((page.parent / f"{name}.md").resolve()) for name in names}
    assert {name_of(page) for page in PAGES} == listed
