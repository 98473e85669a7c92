"""How the documentation is built: `sphinx-build -W -b html docs build/docs`."""

import os
import sys
from importlib.metadata import version as installed
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE.parent / "build"
sys.path.insert(0, str(HERE / "_ext"))

from regard.plots.look import STYLE  # noqa: E402 (after the path of our extensions)

project = "regard"
author = "The regard authors"
copyright = "The regard authors"
version = release = installed("regard")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml", "docstrings", "results"]
exclude_patterns = ["_ext", "_static"]
language = "en_GB"

# Pages
html_theme = "furo"
html_title = f"regard {release}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_math_renderer = "mathml"
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"footer_icons": [], "top_of_page_buttons": []}
pygments_style = "friendly"
pygments_dark_style = "github-dark"

# Markdown
myst_enable_extensions = ["dollarmath", "deflist", "attrs_inline"]
myst_heading_anchors = 3
myst_update_mathjax = False

# Notebooks: every cell is executed, once for each version of a page; what is drawn is vector with text as text.
nb_execution_mode = os.environ.get("REGARD_DOCS_EXECUTION", "cache")
nb_execution_cache_path = str(BUILD / "docs-cells")
nb_execution_timeout = 180
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_ipywidgets_js = {}
nb_mime_priority_overrides = [("html", "image/svg+xml", 5)]

# API reference
autodoc_member_order = "bysource"
autodoc_default_options = {"exclude-members": "extra_repr"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
python_maximum_signature_line_length = 88
add_module_names = False


def _settings_of_the_kernel() -> None:
    """Give the cells a kernel that draws SVG in the style of the house, on one thread, for every reader alike."""
    profile = BUILD / "docs-ipython" / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text(
        "c.InlineBackend.figure_formats = {'svg'}\n"
        f"c.InlineBackend.rc = {STYLE!r}\n"
        "c.InlineBackend.print_figure_kwargs = {'bbox_inches': None, 'metadata': {'Date': None}}\n",
        encoding="utf-8",
    )
    os.environ["IPYTHONDIR"] = str(profile.parent)
    os.environ.setdefault("OMP_NUM_THREADS", "1")


_settings_of_the_kernel()
