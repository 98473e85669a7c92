"""Every name of a recipe as a flag of the command line, with the help that stands beside it in the code."""

import re
from dataclasses import fields
from typing import Annotated, Any, TypedDict

from cyclopts import Group, Parameter

from regard.translation.model import Architecture
from regard.translation.recipe import Data, Training

TABLES = {
    "The model": Architecture,
    "Text and tokens": Data,
    "The training": Training,
}
ENTRY = re.compile(r"^ {8}(\w+): (.*(?:\n {12,}.*)*)", re.MULTILINE)


def _flags() -> dict[str, Any]:
    flags = {}
    for order, (title, table) in enumerate(TABLES.items(), start=1):
        group = Group(title, sort_key=order)
        helps = {name: " ".join(text.split()) for name, text in ENTRY.findall(table.__doc__ or "")}
        for entry in fields(table):
            shown = "" if entry.default is None else f" [default: {entry.default}]"
            help_text = f"{helps[entry.name]}{shown}"
            flags[entry.name] = Annotated[entry.type, Parameter(group=group, help=help_text)]  # pyrefly: ignore
    return flags


# Only what is given on the command line is in the mapping: a file, or the corpus, says the rest.
RecipeFlags = TypedDict("RecipeFlags", _flags(), total=False)  # pyrefly: ignore
