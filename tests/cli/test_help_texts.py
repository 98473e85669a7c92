"""The help of every verb: what it does, and examples that it understands."""

import shlex

import pytest

from regard.cli.app import app, run
from regard.cli.help_texts import EXAMPLES, description

VERBS = [name for name in app if not name.startswith("-")]


def test_every_verb_has_examples_and_no_example_is_of_a_verb_that_is_gone():
    assert set(EXAMPLES) == set(VERBS)


@pytest.mark.parametrize("verb", sorted(EXAMPLES))
def test_the_help_of_a_verb_ends_with_its_examples(verb, capsys):
    assert run([verb, "--help"]) == 0
    printed = capsys.readouterr().out
    after = " ".join(printed.partition("Examples:")[2].split())
    for command, purpose in EXAMPLES[verb]:
        assert f"# {purpose} {command}" in after


@pytest.mark.parametrize("command", [command for shown in EXAMPLES.values() for command, _ in shown])
def test_an_example_is_understood(command):
    words = shlex.split(command)
    given = words[words.index("regard") + 1 :]
    function, bound, _ = app.parse_args(given, exit_on_error=False, print_error=False)
    assert function.__name__ == given[0]
    assert bound is not None


def test_a_description_is_a_line_for_each_paragraph():
    def verb():
        pass

    verb.__doc__ = "Do one thing.\n\n    More of it\n    here.\n\n    Args:\n        x: a number.\n    "
    assert description(verb) == "Do one thing.\n\nMore of it here."
