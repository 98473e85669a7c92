r"""The math renderer of these pages: MathML in the page itself, so that no script is fetched from anywhere.

`\tag{4}` at the end of a displayed formula is its number in the chapter.
"""

import re

from docutils import nodes
from latex import to_mathml
from sphinx.application import Sphinx

TAG = re.compile(r"\\tag\{([^}]*)\}")


def inline(translator, node: nodes.math) -> None:
    """A formula within a line."""
    translator.body.append(to_mathml(node.astext()))
    raise nodes.SkipNode


def displayed(translator, node: nodes.math_block) -> None:
    """A formula on a line of its own, with its number at the right."""
    latex = node.astext()
    number = TAG.search(latex)
    shown = "" if number is None else f'<span class="number">({number[1]})</span>'
    anchor = "" if number is None else f' id="eq-{number[1]}"'
    formula = to_mathml(TAG.sub("", latex).strip(), display=True)
    translator.body.append(f'<div class="formula"{anchor}>{formula}{shown}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer under the name that conf.py chooses."""
    app.add_html_math_renderer("mathml", (inline, None), (displayed, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
