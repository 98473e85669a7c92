"""What does not go together is refused before a model is loaded."""

from pathlib import Path

import pytest

from regard.errors import RegardError
from regard.translation.piping.wishes import Wishes, check

MODEL = (Path("model"),)


def test_wishes_that_go_together():
    check(Wishes(MODEL))
    check(Wishes(MODEL, input=Path("in"), alignment="json", alignment_of="words", alignment_out=Path("out")))
    check(Wishes(MODEL, sentences=("a",), alignment="png", alignment_out=Path("a.png")))


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"sentences": ("a",), "input": Path("in")}, "input: got --input in and sentences; needed one of them"),
        ({"batch_size": 0}, "batch_size: got 0; needed from 1 to"),
        ({"batch_size": 10**20}, "batch_size: got 1.*; needed from 1 to"),
        ({"beams": 10**20}, "beams: got 1.*; needed from 1 to"),
        ({"shortest": -1}, "shortest: got -1; needed 0 or more tokens"),
        ({"shortest": 10**20}, "shortest: got 1.*; needed up to"),
        ({"longest": 0}, "longest: got 0; needed from 1 "),
        ({"longest": 10**12}, "longest: got 1.*; needed from 1 .* to 100,000 tokens"),
        ({"shortest": 5, "longest": 3}, "longest: got 3; needed from 5 .at least --shortest"),
        ({"length_penalty": 1e6}, "length_penalty: got 1000000.0; needed a number from -20 to 20"),
        ({"length_penalty": float("nan")}, "length_penalty: got nan"),
        ({"alignment_of": "words"}, "alignment_of: got no --alignment; needed one of pharaoh, json, svg, png"),
        ({"alignment_out": Path("a")}, "alignment_out: got no --alignment"),
        ({"alignment": "gif"}, "alignment: got 'gif'; needed one of pharaoh, json, svg, png"),
        ({"alignment": "json", "alignment_of": "bytes"}, "alignment_of: got 'bytes'; needed one of words, tokens"),
        ({"alignment": "svg"}, "alignment_out: got none for pictures; .* --alignment-out alignment.svg"),
        (
            {"alignment": "png", "alignment_out": Path("al.SVG")},
            r"alignment_out: got al.SVG; needed a folder, or a file .png\. Write --alignment svg",
        ),
        (
            {"alignment": "svg", "alignment_out": Path("look.pdf")},
            r"alignment_out: got look.pdf; needed a folder, or a file .svg\. A new folder is named without a full stop",
        ),
        (
            {"alignment": "json", "output": Path("o"), "alignment_out": Path("o")},
            "alignment_out: got the file of --output; needed another file",
        ),
    ],
)
def test_wishes_that_do_not(wishes, said):
    with pytest.raises(RegardError, match=said):
        check(Wishes(MODEL, **wishes))
