"""Formulas are MathML, each used, none of them LaTeX."""

from importlib.resources import files
from xml.etree import ElementTree

import pytest

from regard.tour.page.formulas import FORMULAS, math, over, root, sub

KNOWN = {
    "math",
    "mrow",
    "mi",
    "mn",
    "mo",
    "msub",
    "msup",
    "msubsup",
    "mfrac",
    "msqrt",
    "mspace",
    "munder",
    "munderover",
}
FRAGMENTS = "".join(
    path.read_text(encoding="utf-8") for path in files("regard.tour.page").joinpath("stations").iterdir()
)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_is_well_formed_and_used(name):
    tree = ElementTree.fromstring(FORMULAS[name].replace("&#8289;", ""))
    assert {one.tag for one in tree.iter()} <= KNOWN
    assert not set("\\$_^") & set("".join(tree.itertext()))
    assert f"{{{{math:{name}}}}}" in FRAGMENTS


def test_numbers_names_and_operators():
    assert math("2 x +", over("1", root("D")), sub("*k", "i")) == (
        "<math><mrow><mn>2</mn><mi>x</mi><mo>+</mo>"
        "<mfrac><mrow><mn>1</mn></mrow><mrow><msqrt><mrow><mi>D</mi></mrow></msqrt></mrow></mfrac>"
        '<msub><mrow><mi mathvariant="normal" class="v">k</mi></mrow><mrow><mi>i</mi></mrow></msub></mrow></math>'
    )
