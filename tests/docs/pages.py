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
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def name_of(path):
    """A page in print: guides/masks."""
    return str(path.relative_to(DOCS).with_suffix(""))


def python_in(path):
    """The blocks and cells of a page, in order."""
    return PYTHON.findall(path.read_text(encoding="utf-8"))


def commands_in(path):
    """The lines that a reader would type after a dollar sign."""
    blocks = CONSOLE.findall(path.read_text(encoding="utf-8"))
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
