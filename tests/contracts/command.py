"""Run the `regard` command in this process, and train tiny translators with it."""

import sys
from unittest import mock

import pytest

import regard.cli

SMALL = {"--embedding": 6, "--hidden": 8, "--epochs": 1, "--warmup": 1, "--device": "cpu", "--threads": 1}
"""Options of a tiny training, unless others are given."""


def run(*arguments):
    """The exit status of `regard` with these arguments."""
    words = ["regard", *map(str, arguments)]
    with mock.patch.object(sys, "argv", words), pytest.raises(SystemExit) as left:
        regard.cli.main()
    return left.value.code or 0


def train(folder, pairs, *options):
    """A model folder after one epoch on the pairs of source and target, validated on the first of them."""
    files = {}
    for name, chosen in (("pairs", pairs), ("valid-pairs", pairs[:1])):
        files[name] = folder.with_name(f"{folder.name}-{name}.tsv")
        files[name].write_text("".join(f"{source}\t{target}\n" for source, target in chosen), encoding="utf-8")
    given = {f"--{name}": file for name, file in files.items()} | {"--out": folder}
    given |= {name: value for name, value in SMALL.items() if name not in options}
    assert run("train", *(word for pair in given.items() for word in pair), *options) == 0
    return folder
