"""`{results}`: tables rendered from the result files of the benchmarks, so that no number is typed on a page."""

import sys
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[2]


class Results(SphinxDirective):
    """The tables of one report: `benchmarks` or `translation`."""

    required_arguments = 1
    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        """Render, and read the result as a part of the page; the page depends on the files."""
        for file in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
            self.env.note_dependency(str(file))
        return self.parse_text_to_nodes(rendered(self.arguments[0]))


def rendered(which: str) -> str:
    """The Markdown of a report."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from benchmarks import report
    from benchmarks.translation import report as translation_report

    reports = {
        "benchmarks": lambda: f"{report.short()}\n{report.everything()}",
        "translation": translation_report.render,
    }
    return reports[which]()


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("results", Results)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
