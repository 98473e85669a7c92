"""The lines of Python that the page shows are run, on less data where they train."""

import contextlib
import io
import re
from html import unescape

import pytest

from regard.tour.page.assembling import HERE

SMALLER = {
    "train=36_000, valid=120": "train=48, valid=12",
    "train=10_000, valid=120, test=120": "train=48, valid=8, test=8",
    '"epochs": 4': '"epochs": 1',
    '"epochs": 3': '"epochs": 1',
    "updates=600": "updates=3",
}
FRAGMENTS = sorted(path.name for path in HERE.joinpath("stations").iterdir())


@pytest.mark.parametrize("name", FRAGMENTS)
def test_the_lines_run(name, tmp_path, monkeypatch):
    fragment = HERE.joinpath("stations", name).read_text(encoding="utf-8")
    (code,) = re.findall(r"<pre><code>(.*?)</code></pre>", fragment, flags=re.DOTALL)
    code = unescape(code)
    for whole, small in SMALLER.items():
        code = code.replace(whole, small)
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, name, "exec"), {"__name__": "lines"})
    assert printed.getvalue().strip()
