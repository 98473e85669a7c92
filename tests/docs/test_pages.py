"""Every block of code on every page runs, top to bottom; every command shown is one that the command line knows."""

import shlex

import pytest
from tests.docs.pages import NOTEBOOKS, PAGES, commands_in, name_of, python_in

from regard.cli.app import app

RUN = [page for page in PAGES if python_in(page) and page not in NOTEBOOKS]


@pytest.fixture
def _quiet_figures(monkeypatch, tmp_path):
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    yield
    pyplot.close("all")


# torch.func.jvp itself calls torch.jit.script.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.usefixtures("_quiet_figures")
@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_the_code_of_a_page_runs(page):
    names = {"__name__": "__main__"}
    for number, block in enumerate(python_in(page)):
        exec(compile(block, f"{name_of(page)}, block {number}", "exec"), names)
    assert names.keys() > {"__builtins__", "__name__"}


def test_most_pages_have_code():
    assert len(RUN) > 15


SHOWN = [(page, command) for page in PAGES for command in commands_in(page) if "regard" in shlex.split(command)]


@pytest.mark.parametrize(
    ("page", "command"), SHOWN, ids=[f"{name_of(page)}: {command[:40]}" for page, command in SHOWN]
)
def test_a_command_that_is_shown_is_understood(page, command):
    words = shlex.split(command)
    given = words[words.index("regard") + 1 :]
    function, *_ = app.parse_args(given, exit_on_error=False, print_error=False)
    assert function.__name__ == given[0], page


def test_commands_are_shown():
    assert len(SHOWN) >= 10
