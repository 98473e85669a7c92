"""Docstrings as they are written here, for autodoc: plain text whose stars and bars are not markup.

In a docstring `name` is code, (*batch, queries) is a shape and |q - k| a norm; reStructuredText would read an emphasis
and a substitution. Lines such as "bandwidth: the scale …" before any section are a list of names.
"""

import re

from sphinx.application import Sphinx

CODE = re.compile(r"`([^`]+)`")
MARKUP = re.compile(r"([*|_\\])")
NAMED = re.compile(r"^([a-z_][\w, ]*?): (\S.*)$")
SECTION = re.compile(r"^(Args|Attributes|Parameters|Returns|Raises|Yields|Examples?):\s*$")


def plain(lines: list[str]) -> list[str]:
    r"""The lines with code as code, signs as signs, and names as a list of fields.

    >>> plain(["h_j of `attend`, (*batch, queries)."])
    ['h\\_j of ``attend``, (\\*batch, queries).']
    """
    result: list[str] = []
    in_example = in_section = False
    for line in lines:
        stripped = line.strip()
        if stripped.startswith(">>>") and not in_example and result and result[-1].strip():
            result.append("")
        in_example = stripped.startswith(">>>") or (in_example and bool(stripped))
        in_section = bool(SECTION.match(line)) or (in_section and (not stripped or line[:1].isspace()))
        if in_example:
            result.append(line)
            continue
        named = None if in_section else NAMED.match(line)
        if named:
            names = " ".join(escaped(named[1]).split())
            if result and result[-1].strip() and not result[-1].startswith((":", " ")):
                result.append("")
            result.append(f":{names}: {escaped(named[2])}")
        elif SECTION.match(line):
            result += [*([""] if result and result[-1].strip() else []), line]
        else:
            result.append(escaped(line))
    return _separated(result)


def escaped(line: str) -> str:
    """One line: what stands between backquotes is code, and everything else is what it looks like."""
    parts = CODE.split(line)
    shown = [f"``{part}``" if odd else MARKUP.sub(r"\\\1", part) for odd, part in _alternating(parts)]
    return "".join(shown)


def _alternating(parts: list[str]) -> list[tuple[int, str]]:
    return [(index % 2, part) for index, part in enumerate(parts)]


def _separated(lines: list[str]) -> list[str]:
    """Blank lines where a list of names ends and text goes on."""
    result: list[str] = []
    in_list = False
    for line in lines:
        is_name = line.startswith(":")
        if in_list and line.strip() and not is_name and not line[:1].isspace():
            result.append("")
        in_list = is_name or (in_list and (not line.strip() or line[:1].isspace()))
        result.append(line)
    return result


def process(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Before napoleon reads the sections."""
    del app, what, name, obj, options
    lines[:] = plain(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect before napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", process, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
