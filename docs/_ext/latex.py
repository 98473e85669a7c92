r"""Formulas as MathML, which a browser sets by itself: the part of LaTeX that these pages use, and no more.

row  := (atom script*)*        atom := letter | number | sign | {row} | \command argument*
"""

import re
from collections.abc import Callable
from html import escape

TOKEN = re.compile(r"\\[a-zA-Z]+|\\[^a-zA-Z]|[0-9]+(?:\.[0-9]+)?|\s+|.", re.DOTALL)

GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "lambda": "λ", "mu": "μ", "pi": "π",
    "rho": "ρ", "sigma": "σ", "tau": "τ", "phi": "φ", "theta": "θ", "Delta": "Δ", "Sigma": "Σ",
}  # fmt: skip
SIGNS = {
    "cdot": "⋅", "times": "×", "pm": "±", "le": "≤", "ge": "≥", "neq": "≠", "approx": "≈", "propto": "∝", "in": "∈",
    "sim": "∼", "to": "→", "mapsto": "↦", "dots": "…", "cdots": "⋯", "prime": "′", "lVert": "‖", "rVert": "‖",
    "mid": "∣", "{": "{", "}": "}", "partial": "∂",
}  # fmt: skip
LETTERS = {"infty": "∞", "top": "⊤", "ell": "ℓ"}
FUNCTIONS = {"exp", "log", "tanh", "sin", "cos", "softmax", "pool", "score"}
WITH_LIMITS = {"sum": "∑", "prod": "∏", "max": "max", "min": "min"}
SPACES = {"quad": "1em", "qquad": "2em", ",": "0.17em", ";": "0.28em", " ": "0.25em", "!": "-0.17em"}
ACCENTS = {"hat": "^", "tilde": "~", "bar": "¯"}
FENCES = {"(": "(", ")": ")", "[": "[", "]": "]", "|": "|", ".": "", "lVert": "‖", "rVert": "‖"}
SIGN_OF = {"-": "−", "*": "∗"}


class UnknownFormula(ValueError):  # noqa: N818 (it says what is unknown)
    """A formula uses what these pages have not needed so far."""


def to_mathml(latex: str, *, display: bool = False) -> str:
    """The formula as a `math` element; its source is kept for readers that cannot show it.

    >>> to_mathml("x^2")
    '<math alttext="x^2"><msup><mi>x</mi><mn>2</mn></msup></math>'
    """
    reader = _Reader(latex, display)
    body = reader.row(until=None)
    shape = ' display="block"' if display else ""
    return f'<math{shape} alttext="{escape(" ".join(latex.split()))}">{body}</math>'


class _Reader:
    """Reads a formula from left to right."""

    def __init__(self, latex: str, display: bool) -> None:
        self.latex, self.display = latex, display
        self.tokens, self.at = TOKEN.findall(latex), 0

    def peek(self) -> str | None:
        while self.at < len(self.tokens) and self.tokens[self.at].isspace():
            self.at += 1
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self) -> str:
        token = self.peek()
        if token is None:
            raise UnknownFormula(f"the formula ends too soon: {self.latex}")
        self.at += 1
        return token

    def row(self, until: Callable[[str], bool] | None) -> str:
        """Atoms with their scripts, up to the token that ends them, which is left."""
        parts = []
        while (token := self.peek()) is not None and not (until and until(token)):
            parts.append(self.scripted())
        if until and self.peek() is None:
            raise UnknownFormula(f"something is not closed: {self.latex}")
        return parts[0] if len(parts) == 1 else f"<mrow>{''.join(parts)}</mrow>"

    def scripted(self) -> str:
        limits = (self.peek() or "").lstrip("\\") in WITH_LIMITS and self.display
        base, below, above = self.atom(), None, None
        while (token := self.peek()) in ("_", "^", "'"):
            self.take()
            if token == "_":
                below = self.atom()
            elif token == "'":
                above = "<mo>′</mo>"
            else:
                above = self.atom()
        if below is None and above is None:
            return base
        under, over = ("munder", "mover") if limits else ("msub", "msup")
        if above is None:
            return f"<{under}>{base}{below}</{under}>"
        if below is None:
            return f"<{over}>{base}{above}</{over}>"
        both = "munderover" if limits else "msubsup"
        return f"<{both}>{base}{below}{above}</{both}>"

    def atom(self) -> str:
        token = self.take()
        if token == "{":
            inner = self.row(lambda following: following == "}")
            self.take()
            return inner
        if token.startswith("\\"):
            return self.command(token[1:])
        if token[0].isdigit():
            return f"<mn>{token}</mn>"
        if token.isalpha():
            return f"<mi>{token}</mi>"
        if token in "+-=<>()[],;:/!*|":
            return _sign(SIGN_OF.get(token, token))
        raise UnknownFormula(f"{token!r} in {self.latex}")

    def command(self, name: str) -> str:
        if name in GREEK or name in LETTERS:
            return f"<mi>{GREEK.get(name) or LETTERS[name]}</mi>"
        if name in SIGNS:
            return _sign(SIGNS[name])
        if name in FUNCTIONS:
            return f'<mi>{name}</mi><mo rspace="0.1em">&#x2061;</mo>'
        if name in WITH_LIMITS:
            sign = WITH_LIMITS[name]
            return f"<mo>{sign}</mo>" if len(sign) == 1 else f'<mo lspace="0" rspace="0.1em">{sign}</mo>'
        if name in SPACES:
            return f'<mspace width="{SPACES[name]}"/>'
        if name in ACCENTS:
            return f'<mover accent="true">{self.atom()}<mo stretchy="false">{ACCENTS[name]}</mo></mover>'
        known = {"frac": self.fraction, "sqrt": self.root, "left": self.fenced, "begin": self.table}
        if name in known:
            return known[name]()
        if name in ("mathbf", "mathbb", "mathrm", "text", "operatorname"):
            return self.letters(name)
        raise UnknownFormula(f"\\{name} in {self.latex}")

    def fraction(self) -> str:
        return f"<mfrac>{self.atom()}{self.atom()}</mfrac>"

    def root(self) -> str:
        return f"<msqrt>{self.atom()}</msqrt>"

    def fenced(self) -> str:
        opening = FENCES[self.take().lstrip("\\")]
        inner = self.row(lambda token: token == "\\right")
        self.take()
        closing = FENCES[self.take().lstrip("\\")]
        left, right = (f'<mo fence="true" stretchy="true">{fence}</mo>' for fence in (opening, closing))
        return f"<mrow>{left}{inner}{right}</mrow>"

    def letters(self, font: str) -> str:
        if self.take() != "{":
            raise UnknownFormula(f"\\{font} without braces in {self.latex}")
        start = self.at
        while self.at < len(self.tokens) and self.tokens[self.at] != "}":
            self.at += 1
        text = "".join(self.tokens[start : self.at])
        self.take()
        if font == "text":
            return f"<mtext>{escape(text)}</mtext>"
        styled = "".join(_styled(letter, font) for letter in text)
        return f'<mi mathvariant="normal">{styled}</mi>'

    def table(self) -> str:
        self.take()
        kind = "".join(iter(self.take, "}"))
        if kind not in ("cases", "aligned"):
            raise UnknownFormula(f"\\begin{{{kind}}} in {self.latex}")
        rows: list[list[str]] = [[]]
        while True:
            rows[-1].append(self.row(lambda token: token in ("&", "\\\\", "\\end")))
            token = self.take()
            if token == "\\\\":
                rows.append([])
            elif token == "\\end":
                break
        while self.take() != "}":
            pass
        cells = "".join(f"<mtr>{''.join(f'<mtd>{cell}</mtd>' for cell in row)}</mtr>" for row in rows)
        body = f'<mtable class="{kind}">{cells}</mtable>'
        return body if kind == "aligned" else f'<mrow><mo fence="true" stretchy="true">{{</mo>{body}</mrow>'


def _sign(sign: str) -> str:
    r"""A sign as it is: brackets and bars grow with \left and \right only."""
    plain = ' stretchy="false"' if sign in "()[]{}|‖∣" else ""
    return f"<mo{plain}>{escape(sign)}</mo>"


def _styled(letter: str, font: str) -> str:
    """Bold and double-struck letters have characters of their own."""
    if font == "mathbb":
        return {"R": "ℝ", "N": "ℕ", "E": "𝔼", "D": "𝔻"}[letter]
    if font == "mathbf" and letter.isascii() and letter.isalpha():
        return chr(ord(letter) + (0x1D400 - ord("A") if letter.isupper() else 0x1D41A - ord("a")))
    return escape(letter)
