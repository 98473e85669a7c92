"""`python -m benchmarks.additive_figures` draws and writes; with `measure`, the lift's errors are measured first."""

import sys

from benchmarks.additive_figures import curves, explanations, lift_errors, page


def main(words: list[str]) -> None:
    """Every figure into docs/figures, every table into docs/additive.md."""
    if words not in ([], ["measure"]):
        raise SystemExit("usage: python -m benchmarks.additive_figures [measure]")
    if words:
        lift_errors.write()
    for name, draw in {**curves.FIGURES, **explanations.FIGURES}.items():
        draw()
        print(f"docs/figures/{name}.svg")
    page.write()
    print(page.PAGE.relative_to(page.ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
