"""What the help of a verb says around its flags: what it does, and what a user may type first."""

import re
from collections.abc import Callable

EXAMPLES = {
    "tour": (
        ("regard tour", "compute the chapter and write its page into the folder tour"),
        ("regard tour --out lecture", "the same into another folder"),
    ),
    "regress": (
        ("regard regress data.csv --x times --y accel --out fit.svg", "fit, choose the width, draw"),
        ("regard regress data.csv --x east --x north --y height --kernel epanechnikov", "two columns, another kernel"),
        ("regard regress data.csv --x times --y accel --grid 200 --predictions curve.csv", "the curve as a table"),
        ("regard regress --demo", "the chapter's experiment"),
    ),
    "train": (
        ("regard train --corpus dates --out model", "nothing to download: dates of 20 languages to ISO form"),
        ("regard train --pairs pairs.tsv --out mine", "your own pairs, one TAB between sentence and translation"),
        ("regard train --corpus lists --out plain --attention none", "the same model without attention"),
        ("torchrun --nproc-per-node 4 -m regard train --pairs pairs.tsv --out mine", "on four GPUs"),
    ),
    "translate": (
        ('regard translate model "21. syyskuuta 1987"', "one sentence"),
        ('regard translate model -- "- 5 May 2001"', "one that begins with a dash"),
        ("regard translate model --input in.txt --output out.txt", "a file, line by line"),
        ("cat in.txt | regard translate model --batch-size 1", "a pipe, answered as it comes"),
        ('regard translate model "21. syyskuuta 1987" --alignment svg --alignment-out look.svg', "where it looked"),
    ),
    "evaluate": (
        ("regard evaluate model --corpus dates", "on the test part of a built-in corpus"),
        ("regard evaluate model --source test.en --target test.de --out report.json", "on files, all numbers kept"),
        ("regard evaluate model other --pairs test.tsv", "which of two is better"),
        ("regard evaluate model --pairs test.tsv --json", "for a program"),
    ),
    "lab": (
        ("regard lab --quick", "a few minutes"),
        ("regard lab --corpus dates --seeds 5 --out dates-lab", "with intervals over five trainings"),
    ),
    "studio": (
        ("regard studio", "a page on this machine, opened in the browser"),
        ("regard studio model --port 8100 --no-browser", "with a model of your own"),
    ),
    "doctor": (
        ("regard doctor", "versions, devices, and what would run"),
        ("regard doctor --json", "for a program, or for a report of a mistake"),
    ),
    "bench": (
        ("regard bench", "all suites; minutes"),
        ("regard bench dot additive", "some of them"),
        ("regard bench --cuda distance", "on a GPU"),
    ),
}


def epilogue(verb: str) -> str:
    """The examples of a verb, each with its purpose above it."""
    lines = [f"# {purpose}\n  {command}" for command, purpose in EXAMPLES[verb]]
    return "Examples:\n\n  " + "\n\n  ".join(lines)


def description(verb: Callable) -> str:
    """The docstring of a verb up to its arguments, a line for each paragraph: the terminal breaks it where it ends."""
    told = re.split(r"\n\s*(?:Args|Examples):\n", verb.__doc__ or "")[0]
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in told.split("\n\n")).strip()
