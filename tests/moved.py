"""Old names of modules that moved, so that a package can move without editing its tests in the same commit.

A commit that moves modules adds a row for each; the tests then import the new module under its old name, the very same
object, so that what they patch still takes effect. Rewrite the imports afterwards and delete the rows.
"""

import sys
from importlib import import_module

MOVED: dict[str, str] = {}
"""Old dotted name -> new dotted name."""


def install(moved: dict[str, str]) -> None:
    """Make each old name another name of the new module, for `import` and as an attribute of the old parent."""
    for old, new in moved.items():
        module = import_module(new)
        sys.modules[old] = module
        parent, _, name = old.rpartition(".")
        if parent in sys.modules and not hasattr(sys.modules[parent], name):
            setattr(sys.modules[parent], name, module)
