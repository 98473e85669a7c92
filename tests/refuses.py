"""Expect a refusal by its argument and a few words; its whole text is kept in tests/refusals.txt.

So a sentence can be rewritten without editing tests: `pytest --update-refusals` writes the file anew, and its diff
shows every sentence that changed. A text that is not in the file fails the test that met it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from regard import RegardError

SNAPSHOT = Path(__file__).with_name("refusals.txt")
ROOT = str(SNAPSHOT.parents[1])
# Parts of a text that differ between runs or machines, and what stands for them in the file.
VARYING = [
    (re.compile(r"(/[^\s'\":,;]*)?/pytest-[^\s'\":,;]*?/(popen-gw\d+/)?[^\s'\":,;/]+"), "<tmp>"),
    (re.compile(r"\b0x[0-9a-f]{6,}"), "0x…"),
    (re.compile(r"\b[1-9]\d{4,5}\b"), "#####"),  # ports and processes
    (re.compile(r"\bcuda:0\b"), "cpu"),  # the default device of a run on a GPU
]
known: set[str] = set()
seen: set[str] = set()
"""Texts in the file, and those met in this process."""
updates = False
"""Whether the file is being written, so that every text is accepted."""


@contextmanager
def refuses(argument: str, *words: str) -> Iterator[pytest.ExceptionInfo[RegardError]]:
    """Fail unless the block raises a RegardError about `argument` whose text has all these words and is known.

    What `as` binds has the error as `value` after the block, as with `pytest.raises`.
    """
    with pytest.raises(RegardError) as caught:
        yield caught
    text = stable(str(caught.value))
    seen.add(text)
    assert caught.value.argument == argument, f"the refusal is about {caught.value.argument!r}: {text}"
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"the refusal does not say {missing}: {text}"
    assert updates or text in known, f"not in {SNAPSHOT.name}; run pytest --update-refusals and read its diff: {text}"


def stable(text: str) -> str:
    """The text on one line, without what differs between runs."""
    text = text.replace(ROOT, "<root>")
    for pattern, replacement in VARYING:
        text = pattern.sub(replacement, text)
    return text.replace("\n", "\\n")


def read() -> set[str]:
    """The texts in the file."""
    return set(SNAPSHOT.read_text(encoding="utf-8").splitlines()) if SNAPSHOT.exists() else set()


def write(texts: set[str]) -> None:
    """Write the file, sorted, so that its diffs are small."""
    SNAPSHOT.write_text("".join(f"{text}\n" for text in sorted(texts)), encoding="utf-8")
