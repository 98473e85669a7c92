"""The look of figures: panels, paper and night, and the sentence said without matplotlib."""

import subprocess
import sys

import pytest
from tests.refuses import refuses

from regard import plots
from regard.plots.look import COLOURS, LIGHT, NIGHT


def figure():
    drawn, (axes,) = plots.canvas(3, 2)
    axes.set_title("attention weights")
    return drawn


def test_the_users_own_style_is_left_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    figure()
    assert dict(matplotlib.rcParams) == before


def test_panels_stand_side_by_side():
    drawn, axes = plots.canvas(6, 2, panels=3)
    assert drawn.axes == axes
    assert len(axes) == 3


@pytest.mark.parametrize("draw", [lambda: plots.heatmap([[1.0]]), lambda: plots.curves([0.0], {}), figure])
def test_without_matplotlib_the_extra_is_named(monkeypatch, draw):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with refuses("plots", "no module named matplotlib", '"regard[plots]"'):
        draw()


def test_panels_row_by_row_on_the_same_scales():
    _, panels = plots.canvas(4, 3, panels=3, rows=2, same_scales=True)
    assert len(panels) == 6
    panels[4].set_xlim(0, 7)
    panels[4].set_ylim(2, 3)
    assert all(panel.get_xlim() == (0, 7) and panel.get_ylim() == (2, 3) for panel in panels)
    columns = [panel.get_subplotspec().colspan.start for panel in panels]
    assert columns == [0, 1, 2, 0, 1, 2]


def test_the_style_is_light_on_paper_and_dark_by_night():
    from matplotlib import pyplot, rcParams

    with plots.house_style():
        assert rcParams["text.color"] == "black"
    with plots.house_style(dark=True):
        assert (rcParams["figure.facecolor"], rcParams["text.color"]) == ("#131416", "#E6E7E9")
        with plots.house_style():  # within it, the page that holds
            assert rcParams["figure.facecolor"] == "#131416"
    with pyplot.style.context("dark_background"), plots.house_style():
        assert rcParams["figure.facecolor"] == "#131416"


def contrast(one, other):
    """Of two colours, as the accessibility guidelines define it: from 1 to 21."""
    from matplotlib.colors import to_rgb

    def luminance(colour):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_lines_and_text_are_seen_on_both_pages():
    assert contrast(LIGHT, NIGHT) > 12
    assert all(contrast(colour, NIGHT) >= 3 for colour in COLOURS)
    assert all(contrast(colour, "white") >= 2 for colour in COLOURS)


def test_what_a_backend_sets_when_it_is_loaded_stays_set():
    """A notebook's backend turns on that figures are shown; it is loaded by the first figure, or before our style."""
    code = """
import sys, types, matplotlib
from matplotlib.backends import backend_agg
fake = types.ModuleType("fake_backend")
fake.__dict__.update({name: value for name, value in vars(backend_agg).items() if not name.startswith("__")})
class Loading:
    def find_spec(self, name, path=None, target=None):
        if name == "fake_backend":
            matplotlib.interactive(True)
            from importlib.machinery import ModuleSpec
            return ModuleSpec(name, self)
    def create_module(self, spec): return fake
    def exec_module(self, module): pass
sys.meta_path.insert(0, Loading())
matplotlib.use("module://fake_backend", force=False)
from regard import plots
plots.heatmap([[1.0]])
assert matplotlib.is_interactive()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
