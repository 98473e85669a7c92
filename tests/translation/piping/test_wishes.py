"""What does not go together is refused before a model is loaded."""

from pathlib import Path

import pytest
from tests.refuses import refuses

from regard.translation.piping.wishes import Wishes, check

MODEL = (Path("model"),)


def test_wishes_that_go_together():
    check(Wishes(MODEL))
    check(Wishes(MODEL, input=Path("in"), alignment="json", alignment_of="words", alignment_out=Path("out")))
    check(Wishes(MODEL, sentences=("a",), alignment="png", alignment_out=Path("a.png")))


@pytest.mark.parametrize(
    ("wishes", "argument", "word"),
    [
        ({"sentences": ("a",), "input": Path("in")}, "input", "--input in and sentences"),
        ({"alignment_of": "words"}, "alignment_of", "no --alignment"),
        ({"alignment_out": Path("a")}, "alignment_out", "no --alignment"),
        ({"alignment": "gif"}, "alignment", "'gif'"),
        ({"alignment": "json", "alignment_of": "bytes"}, "alignment_of", "'bytes'"),
        ({"alignment": "svg"}, "alignment_out", "none for pictures"),
        (
            {"alignment": "png", "alignment_out": Path("al.SVG")},
            "alignment_out",
            "al.SVG",
        ),
        (
            {"alignment": "svg", "alignment_out": Path("look.pdf")},
            "alignment_out",
            "look.pdf",
        ),
        (
            {"alignment": "json", "output": Path("o"), "alignment_out": Path("o")},
            "alignment_out",
            "the file of --output",
        ),
    ],
)
def test_wishes_that_do_not(wishes, argument, word):
    with refuses(argument, word):
        check(Wishes(MODEL, **wishes))
