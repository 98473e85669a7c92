"""The tour in words and numbers, for the terminal."""

from regard.tour.fits import SHOWN_WIDTH, Fits

TOLD = (0.5, 1.5, 2.5, 3.5)
HEAVIEST = 3


def tell(fits: Fits) -> str:
    """The data, then a few queries with their heaviest keys, then the error of every width."""
    return "\n".join(
        [
            f"{len(fits.x)} samples of y = 2 sin(x) + x + noise: their x are keys, their y values.",
            f"attend(query, key, value, score=Gaussian({SHOWN_WIDTH:g})):",
            "",
            *_queries(fits),
            "",
            f"{'width':>6}  mean squared error against the truth, {len(fits.places)} places",
            *(f"{width:>6g}  {fits.error(width):.4f}" for width in fits.by_width),
            "",
        ]
    )


def _queries(fits: Fits) -> list[str]:
    heaviest = fits.attended.top(HEAVIEST)
    lines = [f"{'x':>6} {'truth':>7} {'output':>7}   the {HEAVIEST} heaviest keys (weight at x)"]
    for place in TOLD:
        row = int((fits.places - place).abs().argmin())
        pairs = zip(heaviest.weights[row].tolist(), heaviest.keys[row].tolist(), strict=True)
        keys = ", ".join(f"{weight:.3f} at {fits.x[index]:.2f}" for weight, index in pairs)
        output = fits.attended.output[row, 0]
        lines.append(f"{fits.places[row]:>6.2f} {fits.truth[row]:>7.3f} {output:>7.3f}   {keys}")
    return lines
