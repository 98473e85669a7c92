"""Formulas: what LaTeX says is what MathML shows, and what is not known is refused by name."""

import doctest
import re
import xml.etree.ElementTree as ET

import docstrings
import latex
import pytest
from latex import UnknownFormula, to_mathml
from tests.docs.pages import PAGES, name_of

INLINE = re.compile(r"(?<![\\$])\$([^$\n]+)\$(?!\$)")
DISPLAYED = re.compile(r"^\$\$\n(.*?)\n\$\$$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def tree(latex, **options):
    return ET.fromstring(to_mathml(latex, **options))


def shown(element):
    return "".join(element.itertext()).replace("\u2061", "")


@pytest.mark.parametrize(
    ("latex", "inside"),
    [
        ("x", "<mi>x</mi>"),
        ("12.5", "<mn>12.5</mn>"),
        ("a-b", "<mrow><mi>a</mi><mo>−</mo><mi>b</mi></mrow>"),
        ("x_i^2", "<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>"),
        ("x^2_i", "<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>"),
        ("c'_t", "<msubsup><mi>c</mi><mi>t</mi><mo>′</mo></msubsup>"),
        ("x_{i j}", "<msub><mi>x</mi><mrow><mi>i</mi><mi>j</mi></mrow></msub>"),
        (r"\frac{a}{b}", "<mfrac><mi>a</mi><mi>b</mi></mfrac>"),
        (r"\sqrt{D}", "<msqrt><mi>D</mi></msqrt>"),
        (r"\alpha", "<mi>α</mi>"),
        (r"a \le b", "<mrow><mi>a</mi><mo>≤</mo><mi>b</mi></mrow>"),
        (r"\mathbf{q}", '<mi mathvariant="normal">𝐪</mi>'),
        (r"\mathbb{R}", '<mi mathvariant="normal">ℝ</mi>'),
        (r"\text{if } x", "<mrow><mtext>if </mtext><mi>x</mi></mrow>"),
        (r"\hat{y}", '<mover accent="true"><mi>y</mi><mo stretchy="false">^</mo></mover>'),
        ("a < b", "<mrow><mi>a</mi><mo>&lt;</mo><mi>b</mi></mrow>"),
    ],
)
def test_what_it_becomes(latex, inside):
    assert re.fullmatch(r"<math[^>]*>(.*)</math>", to_mathml(latex))[1] == inside


def test_sums_have_their_limits_below_and_above_where_there_is_room():
    assert tree(r"\sum_{j=1}^N a_j", display=True).find(".//munderover") is not None
    assert tree(r"\sum_{j=1}^N a_j").find(".//msubsup") is not None
    assert tree(r"\max(0, 1)", display=True).find(".//munder") is None


def test_brackets_grow_only_when_told():
    plain, grown = tree(r"(\frac{a}{b})"), tree(r"\left( \frac{a}{b} \right)")
    assert [mo.get("stretchy") for mo in plain.iter("mo")] == ["false", "false"]
    assert [mo.get("stretchy") for mo in grown.iter("mo")] == ["true", "true"]


def test_cases_are_a_table_behind_a_brace():
    formula = tree(r"f = \begin{cases} 1 & \text{inside} \\ 0 & \text{else} \end{cases}", display=True)
    assert [[shown(cell) for cell in row] for row in formula.iter("mtr")] == [["1", "inside"], ["0", "else"]]
    assert "{" in [mo.text for mo in formula.iter("mo")]


def test_the_source_stays_for_those_who_cannot_see_it():
    assert tree("x < y").get("alttext") == "x < y"


@pytest.mark.parametrize(
    ("latex", "said"),
    [
        (r"\int x", r"\\int in"),
        (r"\begin{matrix} a \end{matrix}", r"\\begin\{matrix\}"),
        ("x^", "ends too soon"),
        (r"\left( x", "not closed"),
        ("{x", "not closed"),
        (r"\mathbf x", "without braces"),
        ("a # b", "'#' in"),
    ],
)
def test_what_is_not_known_is_refused(latex, said):
    with pytest.raises(UnknownFormula, match=said):
        to_mathml(latex)


def test_the_examples_of_the_extensions_are_so():
    assert doctest.testmod(latex) == (0, 1)
    assert doctest.testmod(docstrings) == (0, 1)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_formula_of_a_page_is_known(page):
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    for formula in DISPLAYED.findall(text):
        assert len(tree(re.sub(r"\\tag\{\d+\}", "", formula), display=True)) > 0
    for formula in INLINE.findall(DISPLAYED.sub("", text)):
        assert len(tree(formula)) > 0
