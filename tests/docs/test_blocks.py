"""No fenced block of any page escapes the tests: each is of a kind that they execute, or no code."""

import re
import shlex
from pathlib import Path

import pytest
from tests.docs.pages import PAGES, ROOT, commands_in, kinds_in, name_of, plain_in, python_in, scripts_in

from regard.cli.app import app

README = ROOT / "README.md"
EXECUTED = ("python", "{code-cell} ipython3")  # test_pages, notebooks/; tests/test_readme for the README
SCRIPTS = "{code-block} python"  # test_scripts
TYPED = ("console", "{code-block} console")  # test_pages and test_scripts
# `text` is what a program printed once; a literalinclude is a part of the library.
NO_CODE = ("text", "{figure}", "{toctree}", "{eval-rst}", "{literalinclude}", "{results}")


def untested(kinds: list[str]) -> list[str]:
    known = (*EXECUTED, SCRIPTS, *TYPED)
    return [kind for kind in kinds if kind not in known and kind.partition(" ")[0] not in NO_CODE]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_of_a_known_kind(page):
    assert untested(kinds_in(page)) == []
    assert not re.search(r"^ +(```|~~~|:::)", page.read_text(encoding="utf-8"), re.MULTILINE), "an indented block"


def test_the_readme_has_python_and_plain_blocks_only():
    assert set(untested(kinds_in(README))) == {""}


def test_the_plain_blocks_of_the_readme_are_commands_that_exist_or_the_tree():
    """The tree is compared with the disk by tests/test_architecture."""
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    programs, trees = [], 0
    for block in plain_in(README):
        if block.startswith("cli "):
            trees += 1
            continue
        for line in block.splitlines():
            program, *words = shlex.split(line, comments=True) or [""]
            programs.append(program)
            if program == "make":
                assert words
                assert set(words) <= set(targets)
            elif program == "regard":
                function, *_ = app.parse_args(words, exit_on_error=False, print_error=False)
                assert function.__name__ == words[0], line
            else:
                assert line == "", f"who knows {program}?"
    assert trees == 1
    assert programs.count("make") >= 2
    assert programs.count("regard") >= 5


@pytest.mark.parametrize("page", [*PAGES, README], ids=lambda page: page.stem)
def test_every_block_of_python_is_found_by_what_executes_it(page):
    kinds = kinds_in(page)
    assert len(python_in(page)) == sum(kind in EXECUTED for kind in kinds)
    assert len(scripts_in(page)) == kinds.count(SCRIPTS)
    assert bool(commands_in(page)) == any(kind in TYPED for kind in kinds)


@pytest.mark.parametrize("page", [page for page in PAGES if scripts_in(page)], ids=name_of)
def test_every_script_is_started_by_a_command_of_its_page(page):
    words = {word for command in commands_in(page) for word in command.split()}
    assert scripts_in(page).keys() <= words


def test_a_block_of_another_kind_would_be_seen(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("```py\n1 + 1\n```\n\n```\nplain\n```\n\n~~~{code-block} bash\nls\n~~~\n\n```python\n1\n```\n")
    assert kinds_in(page) == ["py", "", "{code-block} bash", "python"]
    assert untested(kinds_in(page)) == ["py", "", "{code-block} bash"]
