"""Figures that explain: how four hidden units share one reciprocal, and what the features of the lift look like."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from benchmarks.additive_figures.files import save
from regard.backends.triton.additive.lift import CELLS, lift_of
from regard.plots.look import COLOURS, POINTS, TRUTH, WEIGHTS, house_style

# White is 0; both ends stay apart under every common colour blindness.
SIGNED = "PuOr_r"
QUERIES, KEYS, UNITS, SEED = 5, 7, 4, 3
REACH, RANK, SHOWN = 4.0, 14, 4
STEP = 16  # of the table's points, one in so many is drawn


def draw_reciprocals() -> None:
    """Tokens' exponentials on the margins, 1 + uv of each unit in a tile, and the way to one reciprocal."""
    generator = np.random.default_rng(SEED)
    a, b = generator.normal(0, 0.8, (UNITS, QUERIES)), generator.normal(0, 0.8, (UNITS, KEYS))
    weight = np.array([1.0, -0.7, 0.5, 0.9])
    u, v = np.exp(2 * a), np.exp(2 * b)
    with house_style(dark=False):
        figure = Figure(figsize=(7.2, 5.0))
        for unit in range(UNITS):
            _draw_unit(figure, 0.045 + 0.242 * unit, unit, u[unit], v[unit])
        _draw_tree(figure)
        total = np.einsum("h,hqk->qk", weight, np.tanh(a[:, :, None] + b[:, None, :]))
        tile = figure.add_axes((0.4125, 0.035, 0.175, 0.18))
        largest = np.abs(total).max()
        _draw_tile(tile, total, cmap=SIGNED, vmin=-largest, vmax=largest)
        figure.text(0.605, 0.125, r"$w^\top \tanh(a + b)$ of four units", fontsize=9, va="center")
        save(figure, "additive-reciprocals", [QUERIES, KEYS, UNITS, SEED])


def _draw_unit(figure: Figure, left: float, unit: int, u: np.ndarray, v: np.ndarray) -> None:
    """One unit's tile with its margins."""
    scale = {"cmap": "Oranges", "norm": LogNorm(0.02, 50)}
    width, height, thin, bottom = 0.165, 0.20, 0.026, 0.645
    inner, top, number = left + 0.035, bottom + height, unit + 1
    _draw_tile(figure.add_axes((left, bottom, thin, height)), u[:, None], **scale)
    _draw_tile(figure.add_axes((inner, top + 0.014, width, thin * 1.4)), v[None, :], **scale)
    denominators = figure.add_axes((inner, bottom, width, height))
    _draw_tile(denominators, 1 + np.outer(u, v), cmap=WEIGHTS, norm=LogNorm(0.5, 200))
    centred = {"ha": "center", "fontsize": 9}
    figure.text(left + 0.0125, top + 0.01, f"$u_{number}$", va="bottom", **centred)
    figure.text(inner + width / 2, top + 0.058, f"$v_{number}$", va="bottom", **centred)
    told = f"$d_{number} = 1 + u_{number} v_{number}$"
    figure.text(inner + width / 2, bottom - 0.015, told, va="top", **centred)


def _draw_tree(figure: Figure) -> None:
    """What is joined, and in the margin how often it is done."""
    centres = [0.045 + 0.242 * unit + 0.035 + 0.165 / 2 for unit in range(UNITS)]
    pairs = [(centres[0] + centres[1]) / 2, (centres[2] + centres[3]) / 2]
    line = {"color": POINTS, "linewidth": 0.9}
    ax = figure.add_axes((0, 0, 1, 1), zorder=-1)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.set_axis_off()
    for centre, pair in zip(centres, (pairs[0], pairs[0], pairs[1], pairs[1]), strict=True):
        ax.plot([centre, pair], [0.575, 0.508], **line)
    for pair in pairs:
        ax.plot([pair, 0.5], [0.43, 0.358], **line)
    ax.plot([0.5, 0.5], [0.282, 0.225], **line)
    for pair, (i, j) in zip(pairs, ((1, 2), (3, 4)), strict=True):
        text = f"$n_{{{i}{j}}} = w_{i} d_{j} + w_{j} d_{i}$,   $d_{{{i}{j}}} = d_{i} d_{j}$"
        ax.text(pair, 0.468, text, ha="center", va="center", fontsize=9)
    joined = r"$w_1 + \cdots + w_4 - 2\,(n_{12} d_{34} + n_{34} d_{12}) \times \dfrac{1}{d_{12} d_{34}}$"
    ax.text(0.5, 0.32, joined, ha="center", va="center", fontsize=10)
    ax.text(0.045, 0.962, r"once a token:  $u = e^{2a}$,  $v = e^{2b}$", color=COLOURS[1], fontsize=9)
    ax.text(0.4, 0.962, "each pair and unit:  one multiplication and addition", color=COLOURS[0], fontsize=9)
    ax.text(0.73, 0.318, "← one reciprocal for four units", fontsize=9, va="center", color=COLOURS[2])


def _draw_tile(ax: Axes, numbers: np.ndarray, **scale: object) -> None:
    ax.imshow(numbers, aspect="auto", interpolation="none", **scale)  # pyrefly: ignore
    ax.set(xticks=[], yticks=[])
    for spine in ax.spines.values():
        spine.set(visible=True, color=POINTS)


def features() -> tuple[np.ndarray, ...]:
    """Places (points,), f, phi (points, rank), g, psi likewise.

    Singular values come in equal twos, within which vectors may turn: here the even phi comes first, and both are
    positive at the end of the range. Turning both sides alike leaves the sum of products as it is.
    """
    lift = lift_of(REACH, REACH, RANK)
    at = np.linspace(-REACH, REACH, CELLS + 1)[::STEP]
    f, phi, g, psi = (
        table.numpy()[::STEP].astype(float)
        for table in (lift.query.own_term, lift.query.values, lift.key.own_term, lift.key.values)
    )
    for first in range(0, RANK, 2):
        two = slice(first, first + 2)
        _, _, turned = np.linalg.svd(phi[:, two] + phi[::-1, two])
        phi[:, two], psi[:, two] = phi[:, two] @ turned.T, psi[:, two] @ turned.T
    signs = np.where(phi[-1] < 0, -1.0, 1.0)
    return at, f, phi * signs, g, psi * signs


def draw_lift() -> None:
    """The interaction, what some products make of it and what they leave; below, the functions themselves."""
    at, f, phi, g, psi = features()
    interaction = np.tanh(at[:, None] + at) - f[:, None] - g
    with house_style(dark=False):
        figure = Figure(figsize=(7.2, 5.0), layout="constrained")
        upper, lower = figure.subfigures(2, 1, height_ratios=[1, 1.05])
        squares = upper.subplots(1, 4, sharex=True, sharey=True)
        made = [phi[:, :count] @ psi[:, :count].T for count in (2, SHOWN)]
        titles = (r"$\tanh(a+b) - f(a) - g(b)$", "2 products", f"{SHOWN} products", f"what {SHOWN} leave")
        shown = (interaction, *made, interaction - made[1])
        largest = np.abs(interaction).max()
        for ax, square, title in zip(squares, shown, titles, strict=True):
            image = ax.imshow(
                square, cmap=SIGNED, vmin=-largest, vmax=largest, origin="lower", extent=(-REACH, REACH) * 2,
                interpolation="none",
            )  # fmt: skip
            ax.set(xlabel="b", xticks=(-REACH, 0, REACH), yticks=(-REACH, 0, REACH))
            ax.set_title(title, fontsize=8.5)
        squares[0].set_ylabel("a")
        upper.colorbar(image, ax=squares, shrink=0.62, aspect=14)
        panels = lower.subplots(1, 2, sharey=True)
        named = (("a", "f", r"\phi", f, phi), ("b", "g", r"\psi", g, psi))
        for ax, (variable, one, many, own_term, products) in zip(panels, named, strict=True):
            ax.plot(at, own_term, color=TRUTH, linestyle=(0, (4, 2)), linewidth=1.2, label=f"${one}({variable})$")
            for r in range(SHOWN):
                ax.plot(at, products[:, r], color=COLOURS[r], label=rf"${many}_{r + 1}({variable})$")
            ax.set(xlabel=variable, xticks=(-REACH, 0, REACH))
            ax.legend(loc="upper center", ncols=5, bbox_to_anchor=(0.5, 1.2), columnspacing=1.0, handlelength=1.2)
        save(figure, "additive-lift", [REACH, RANK, SHOWN])


FIGURES = {"additive-reciprocals": draw_reciprocals, "additive-lift": draw_lift}
