"""Without a package, the feature that needs it says in one sentence which extra brings it; everything else works."""

import json
import re
import tomllib

import pytest
from tests.promises import without

# Each feature: the packages it needs, the extra that brings them, and a line that uses it.
CORE = "import regard, torch; q = torch.randn(3, 2); regard.attend(q, q, q, {score!r}{more})"
FEATURES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "dot": ((), "", CORE.format(score="scaled_dot", more="")),
    "distance": ((), "", CORE.format(score="gaussian", more=', backend="blocked"')),
    "layer": ((), "", "import regard, torch; regard.MultiHeadAttention(4, 2)(torch.randn(1, 3, 4))"),
    "sums": ((), "", "from regard.regression.sums import pool"),
    "characters": (
        (),
        "",
        "from regard.translation.vocabulary import learn_vocabulary; learn_vocabulary('characters', ['ab'])",
    ),
    "lists": (
        (),
        "",
        "from regard.translation.corpora import built_in_corpus; built_in_corpus('lists', train=2, valid=1, test=1)",
    ),
    "model": ((), "", "from regard.translation import Translator, Architecture, EncoderDecoder"),
    "kernels": (("triton",), "regard[gpu]", CORE.format(score="gaussian", more=', backend="triton"')),
    "estimator": (
        ("sklearn",),
        "regard[regression]",
        "from regard.regression import NadarayaWatson; NadarayaWatson('gaussian', 1.0).fit([[0.0], [1.0]], [0.0, 1.0])",
    ),
    "regress": (
        ("sklearn",),
        "regard[regression]",
        "from regard.regression.csv_report import _estimator; _estimator()",
    ),
    "figure": (("matplotlib",), "regard[plots]", "import regard, torch; regard.plots.heatmap(torch.rand(2, 3))"),
    "subwords": (
        ("sentencepiece",),
        "regard[translation]",
        "from regard.translation.vocabulary import learn_vocabulary; learn_vocabulary('bpe', ['ab cd abcd'] * 3)",
    ),
    "folder": (
        ("safetensors",),
        "regard[translation]",
        "import tempfile; from tests.translation.models import random_model, save_model\n"
        "with tempfile.TemporaryDirectory() as f: save_model(f, random_model())",
    ),
    "bleu": (
        ("sacrebleu",),
        "regard[translation]",
        "from regard.extras import require; require('sacrebleu', 'translation', 'evaluate')",
    ),
    "dates": (
        ("babel",),
        "regard[translation]",
        "from regard.translation.corpora import built_in_corpus; built_in_corpus('dates', train=2, valid=1, test=1)",
    ),
    "numbers": (
        ("num2words",),
        "regard[translation]",
        "from regard.translation.corpora import built_in_corpus; built_in_corpus('numbers', train=2, valid=1, test=1)",
    ),
    "blocks": (
        ("dask", "sklearn"),
        "regard[distributed]",
        "from regard.regression.dask_arrays import import_dask; import_dask()",
    ),
    "commands": (
        ("cyclopts", "rich"),
        "regard[cli]",
        "import sys; from regard.cli import main; sys.argv = ['regard', '--version']; main()",
    ),
    "studio": (
        ("starlette", "uvicorn", "sklearn", "safetensors", "sentencepiece", "sacrebleu", "babel", "num2words"),
        "regard[",
        "from regard.studio.start import check_extras; check_extras()",
    ),
}
PACKAGES = sorted({package for packages, _, _ in FEATURES.values() for package in packages})
LACKS = [
    (name, package)
    for name, (packages, _, _) in FEATURES.items()
    for package in packages
    if (name, package) != ("blocks", "sklearn")  # whoever has a model has scikit-learn: "estimator" asks for it
]

# Tells of each feature how it ended: nothing where it works, its sentence where it is refused.
TRYING = """
import json
from regard.errors import RegardError
told = {}
for name, line in %r.items():
    try:
        exec(line, {"__name__": "__main__"})
        told[name] = ""
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code in (0, None):
            told[name] = ""
        else:
            kind = "" if isinstance(error, RegardError | SystemExit) else type(error).__name__ + ": "
            told[name] = kind + str(error)
print("told", json.dumps(told))
"""


@pytest.fixture(scope="module")
def told() -> dict[str, dict[str, str]]:
    """What features said: "without x" those that need x, "only y" those of the extra y, all others missing."""
    cases, code = {}, {name: line for name, (_, _, line) in FEATURES.items()}
    for package in PACKAGES:
        lines = {name: code[name] for name, (needs, _, _) in FEATURES.items() if package in needs}
        cases[f"without {package}"] = ([package], TRYING % lines)
    for extra in {extra for _, extra, _ in FEATURES.values()}:
        ours = {name: needs for name, (needs, also, _) in FEATURES.items() if also == extra}
        hidden = [package for package in PACKAGES if not any(package in needs for needs in ours.values())]
        cases[f"only {extra}"] = (hidden, TRYING % {name: code[name] for name in ours})
    cases["bare"] = (["matplotlib"], TRYING % {"bare": "import matplotlib"})
    found = {}
    for case, text in without.run_all(cases).items():
        lines = [line for line in text.splitlines() if line.startswith("told ")]
        assert len(lines) == 1, f"{case}: {text}"
        found[case] = json.loads(lines[0].removeprefix("told "))
    return found


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_works_with_its_own_extra_and_no_other(told, name):
    assert told[f"only {FEATURES[name][1]}"][name] == ""


@pytest.mark.parametrize(("name", "package"), LACKS)
def test_without_one_of_them_it_names_the_extra(told, name, package):
    said = told[f"without {package}"][name]
    assert FEATURES[name][1] in said, "the extra is named"
    assert package in said.lower().replace("scikit-learn", "sklearn"), "so is what is missing"
    assert "\n" not in said
    assert "Error:" not in said, "it is our sentence, not Python's"


@pytest.mark.parametrize("name", [name for name, (_, extra, _) in FEATURES.items() if extra.endswith("]")])
def test_the_extra_that_is_named_brings_what_is_missing(name):
    packages, extra, _ = FEATURES[name]
    declared = tomllib.loads((without.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    brought = declared["project"]["optional-dependencies"][extra.removeprefix("regard[").removesuffix("]")]
    names = {re.match(r"[\w-]+", package)[0].replace("scikit-learn", "sklearn") for package in brought}
    assert [package for package in packages if (name, package) in LACKS and package not in names] == []


def test_a_hidden_package_is_hidden(told):
    assert told["bare"] == {"bare": "ModuleNotFoundError: No module named 'matplotlib'"}
