"""The extensions of the documentation can be imported by their names, as Sphinx does."""

import sys

from tests.docs.pages import DOCS

sys.path.insert(0, str(DOCS / "_ext"))
