"""The pages of the documentation, and what is in them: cells, blocks, commands, formulas."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if not path.relative_to(DOCS).parts[0].startswith("_"))
NOTEBOOKS = sorted((DOCS / "notebooks").glob("[!i]*.md"))
PYTHON = re.compile(
    r"^```(?:python|\{code-cell\} ipython3)\n(?:---\n.*?\n---\n|(?::\w+:.*\n)*)(.*?)^```$", re.DOTALL | re.MULTILINE
)
SCRIPT = re.compile(r"^```\{code-block\} python\n:caption: (\S+)\n\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CONSOLE = re.compile(r"^```(?:console|\{code-block\} console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FENCE = re.compile(r"^(`{3,}|~{3,}|:{3,})([^\n`]*)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)


def name_of(path):
    """A page in print: guides/masks."""
    return str(path.relative_to(DOCS).with_suffix(""))


def python_in(path):
    """The blocks and cells of a page, in order."""
    return PYTHON.findall(path.read_text(encoding="utf-8"))


def scripts_in(path):
    """The files that a reader would write, by their names."""
    return dict(SCRIPT.findall(path.read_text(encoding="utf-8")))


def kinds_in(path):
    """How each fenced block of a page opens: python, {figure} and a file, and so on."""
    return [kind.strip() for _, kind, _ in FENCE.findall(path.read_text(encoding="utf-8"))]


def plain_in(path):
    """The blocks that name no language."""
    return [body for _, kind, body in FENCE.findall(path.read_text(encoding="utf-8")) if not kind.strip()]


def transcripts_in(path):
    """What a reader would type after dollar signs, each with what is printed after it: (command, printed)."""
    found = []
    for block in CONSOLE.findall(path.read_text(encoding="utf-8")):
        for turn in re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
            command, _, printed = turn.partition("\n")
            found.append((" ".join(command.split()), printed))
    return found


def commands_in(path):
    """The lines that a reader would type after a dollar sign."""
    return [command for command, _ in transcripts_in(path)]
