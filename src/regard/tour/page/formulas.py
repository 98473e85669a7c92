"""The formulas of the page as MathML, written out by a few words for fractions, roots and indices."""

import re
from html import escape


def math(*parts: str, block: bool = False) -> str:
    """A formula: parts beside each other; block: on a line of its own."""
    display = ' display="block"' if block else ""
    return f"<math{display}>{row(*parts)}</math>"


def row(*parts: str) -> str:
    """Parts as one; text between blanks becomes numbers, names and operators, elements stay as they are."""
    return "<mrow>" + "".join(part if part.startswith("<") else _tokens(part) for part in parts) + "</mrow>"


def _tokens(text: str) -> str:
    return "".join(_token(word) for word in text.split())


def _token(word: str) -> str:
    if re.fullmatch(r"[\d.,]+", word):
        return f"<mn>{word}</mn>"
    if word in NAMED:
        return f"<mi>{word}</mi><mo>&#8289;</mo>"
    if re.fullmatch(r"\*\w", word):  # a bold letter: a vector or a matrix
        return f'<mi mathvariant="normal" class="v">{word[1:]}</mi>'
    if word in BRACKETS:
        return f'<mo stretchy="false">{word}</mo>'
    return f"<mi>{word}</mi>" if re.fullmatch(r"\w+['′]?", word) else f"<mo>{escape(word)}</mo>"


BRACKETS = {"(", ")", "|", "‖"}
NAMED = {"softmax", "tanh", "exp", "max", "log", "sin", "cos"}


def sub(base: str, index: str) -> str:
    """An index below."""
    return f"<msub>{row(base)}{row(index)}</msub>"


def sup(base: str, exponent: str) -> str:
    """A power, or a sign of transposition."""
    return f"<msup>{row(base)}{row(exponent)}</msup>"


def both(base: str, index: str, exponent: str) -> str:
    """An index and a power."""
    return f"<msubsup>{row(base)}{row(index)}{row(exponent)}</msubsup>"


def over(top: str, bottom: str) -> str:
    """A fraction."""
    return f"<mfrac>{row(top)}{row(bottom)}</mfrac>"


def root(inside: str) -> str:
    """A square root."""
    return f"<msqrt>{row(inside)}</msqrt>"


def total(index: str) -> str:
    """A sum over an index."""
    return f"<munder><mo>∑</mo>{row(index)}</munder>"


def norm2(inside: str) -> str:
    """A squared norm."""
    return sup(row("‖", inside, "‖"), "2")


T = "⊤"
# Between two formulas of one line.
APART = '<mspace width="1em"></mspace>'
QK = row(sup("*q", T), "*k")

FORMULAS = {
    "eq1": math("Attention ( *q ) =", total("i"), "α ( *q ,", sub("*k", "i"), ")", sub("*v", "i"), block=True),
    "eq2": math("α ( *q ,", sub("*k", "i"), ") ≥ 0 ,", APART, total("i"), "α ( *q ,", sub("*k", "i"), ") = 1"),
    "eq3": math(
        "α ( *q ,", sub("*k", "i"), ") =",
        over(row("exp f ( *q ,", sub("*k", "i"), ")"), row(total("j"), "exp f ( *q ,", sub("*k", "j"), ")")),
        block=True,
    ),
    "eq4": math(
        "g ( x ) =", total("i"),
        over(row("f ( x ,", sub("x", "i"), ")"), row(total("j"), "f ( x ,", sub("x", "j"), ")")), sub("y", "i"),
        block=True,
    ),
    "truth": math("y = 2 sin x + x + ε"),
    "gaussian": math("exp ( −", sup("d", "2"), "/ 2 )"),
    "d": math("d = | q − k | / h"),
    "eq5": math("exp ( −", over(norm2("*q − *k"), row("2", sup("h", "2"))), ")"),
    "eq6": math("−", norm2("*q − *k"), "= −", norm2("*q"), "−", norm2("*k"), "+ 2", QK),
    "eq6-printed": math("−", norm2("*q − *k"), "=", norm2("*q"), "−", norm2("*k"), "+ 2", QK),
    "eq7": math("2", QK),
    "eq8": math(over(QK, root("D"))),
    "width": math("h =", sup("D", "1 / 4")),
    "identity": math("softmax ( −", norm2("*q − *k"), ") = softmax ( 2", QK, "−", norm2("*k"), ")", block=True),
    "root": math("1 /", root("D")),
    "variance": math("var (", QK, ") = D"),
    "gradient": math(over("∂ o", row("∂", sub("s", "j"))), "=", sub("α", "j"), "(", sub("v", "j"), "− o )"),
    "dot": math(QK),
    "squared-distance": math("−", norm2("*q − *k")),
    "bilinear": math(over(row(sup("*q", T), "*M *k"), root(sub("D", "k")))),
    "additive": math(sup("*w", T), "tanh (", sub("*W", "q"), "*q +", sub("*W", "k"), "*k )"),
    "eq9-printed": math("softmax (", sup("D", "1 / 2"), sup("*q", T), "*K )"),
    "eq9": math("softmax (", sup("D", "− 1 / 2"), sup("*q", T), "*K )"),
    "eq12-printed": math(sub("*w", "f"), "tanh ( · )"),
    "eq12": math(both("*w", "f", T), "tanh ( · )"),
    "eq13": math(
        sub("*c", "t′"), "=", total("t"), "α (", both("*h", "t′ − 1", "′"), ",", sub("*h", "t"), ")", sub("*h", "t"),
        block=True,
    ),
    "c-printed": math(both("*c", "t", "′")),
    "c": math(sub("*c", "t′")),
    "eq14": math(
        "*o =", total("j"), both("*W", "o", "( j )"), sub("*h", "j"), ",", APART,
        sub("*h", "j"), "= Attention (", both("*W", "q", "( j )"), "*q ,", both("*W", "k", "( j )"), "*K ,",
        both("*W", "v", "( j )"), "*V )",
        block=True,
    ),
    "exact": math(
        "tanh ( a + b ) =", over("u v − 1", "u v + 1"), ",", APART,
        "u =", sup("e", "2 a"), ",", APART, "v =", sup("e", "2 b"),
        block=True,
    ),
    "lift": math("tanh ( a + b ) ≈", "<munderover><mo>∑</mo>" + row("r = 1") + row("R") + "</munderover>",
                 sub("φ", "r"), "( a )", sub("ψ", "r"), "( b )", block=True),
    "triangular": math("max ( 0 , 1 − | d | )"),
    "epanechnikov": math("max ( 0 , 1 −", sup("d", "2"), ")"),
    "rn": math("∈", sup("ℝ", "N")),
    "edge": math("| q − k | ≤ 1"),
    "w-o": math(sup("*w", "( o )")),
    "W-o": math(sub("*W", "o")),
}  # fmt: skip
