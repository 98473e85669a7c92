"""The page on additive attention says what the result files say, and its figures were drawn from them."""

import re

import numpy as np
import pytest
from benchmarks import pages
from benchmarks.additive_figures import curves, explanations, files, lift_errors, page
from benchmarks.additive_figures.__main__ import main

from regard.backends.blocked.additive import CHUNK_ELEMENTS, TANH_ERROR, AdditiveScores
from regard.backends.triton import additive
from regard.backends.triton.additive import exact, lifted
from regard.backends.triton.additive.lift import CELLS, MAX_PRODUCT, lift_of
from regard.scores.additive import TOKENS_PER_OUTLIER

TEXT = page.PAGE.read_text(encoding="utf-8")
DRAWN_FROM = {
    "additive-time": lambda: curves.by_length("seconds"),
    "additive-memory": lambda: curves.by_length("peak_bytes"),
    "additive-lift-errors": lambda: files.kept("lift-errors"),
}
ALL = {**curves.FIGURES, **explanations.FIGURES}
RENEW = "run python -m benchmarks.additive_figures"


def words_in(figure):
    """Labels that are text and not drawn letters."""
    return set(re.findall(r">([^<>]{3,})</text>", figure.read_text(encoding="utf-8")))


def test_every_generated_part_has_its_place():
    assert sorted(re.findall(r"^<!-- generated: (.*) -->$", TEXT, re.MULTILINE)) == sorted(page.PARTS)


@pytest.mark.parametrize("name", page.PARTS)
def test_a_generated_part_is_what_the_results_say(name):
    assert pages.part(TEXT, name) == page.PARTS[name](), RENEW


def test_writing_again_changes_nothing(tmp_path, monkeypatch):
    copy = tmp_path / "additive.md"
    copy.write_text(TEXT.replace("7", "8"), encoding="utf-8")
    monkeypatch.setattr(page, "PAGE", copy)
    page.write()
    assert page.PARTS["additive kernels"]() in copy.read_text(encoding="utf-8")
    copy.write_text(TEXT, encoding="utf-8")
    page.write()
    assert copy.read_text(encoding="utf-8") == TEXT, RENEW


@pytest.mark.parametrize("name", DRAWN_FROM)
def test_a_figure_was_drawn_from_the_kept_results(name):
    assert files.drawn_from(name) == files.digest(DRAWN_FROM[name]()), RENEW


def test_the_page_shows_every_figure():
    assert sorted(re.findall(r"^```\{figure\} figures/([\w-]+)\.svg$", TEXT, re.MULTILINE)) == sorted(ALL)


@pytest.mark.parametrize("name", ALL)
def test_a_figure_is_drawn_again_with_its_text_as_text(name, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FIGURES", tmp_path)
    ALL[name]()
    new = words_in(tmp_path / f"{name}.svg")
    assert len(new) >= 3
    assert new == words_in(page.ROOT / "docs" / "figures" / f"{name}.svg"), RENEW


def test_curves_are_the_medians_and_the_compiled_form_is_among_them():
    suite = files.kept("additive-cuda")
    series = curves.by_length("seconds")
    for row in suite["curve"]:
        for form, seconds in row["seconds"].items():
            assert (row["tokens"], seconds["median"]) in series[form]
    compiled = dict(series["textbook, torch.compile"])
    rows = [row for row in suite["rows"] if row["backward"] and "textbook, torch.compile" in row["seconds"]]
    assert set(compiled) == {row["tokens"] for row in rows}


def test_every_comparison_and_every_kernel_is_in_a_table():
    suite = files.kept("additive-cuda")
    told = re.findall(r"^\| \d+ x \d+² \| ", page.speed_table("additive-cuda"), re.MULTILINE)
    assert len(told) == len(suite["rows"]) + len(suite["longest"]) > 0
    kernels = files.kept("additive-kernels-cuda")["rows"]
    for call, part in re.findall(r"^\| \*\*(.+?)\*\* .*\n((?:\| [^*].*\n)+)", page.kernels_table(), re.MULTILINE):
        rows = [row for row in kernels if row["call"] == call]
        told = re.findall(r"^\| .+? \| (\d+) \| ([\d.]+) ", part, re.MULTILINE)
        assert sum(int(launches) for launches, _ in told) == sum(row["launches"] for row in rows) > 0
        assert sum(float(ms) for _, ms in told) == pytest.approx(sum(row["ms"] for row in rows), abs=0.01)
        kernels = [row for row in kernels if row["call"] != call]
    assert kernels == []


def test_the_measured_errors_are_kept_for_every_rank_and_within_the_bound():
    rows = files.kept("lift-errors")["rows"]
    assert [(row["reach"], row["rank"]) for row in rows] == [
        (reach, rank) for reach in lift_errors.REACHES for rank in lift_errors.RANKS
    ]
    for row in rows:
        assert row["value_observed"] <= row["value_promised"]
        assert row["slope_observed"] <= row["slope_promised"]


@pytest.mark.parametrize(("reach", "rank"), [(2.0, 8), (6.0, 16)])
def test_measuring_again_gives_the_kept_errors(reach, rank):
    (kept,) = [row for row in files.kept("lift-errors")["rows"] if (row["reach"], row["rank"]) == (reach, rank)]
    assert lift_errors.row(reach, rank) == pytest.approx(kept, rel=0.05)


def test_a_worse_lift_is_seen_to_be_worse():
    given = lift_errors.pairs(4.0)
    lift = lift_of(4.0, 4.0, 14)
    key = lift.key._replace(values=lift.key.values * 1.01)
    broken = lift_errors.observed(lift._replace(key=key), *given)
    assert broken[0] > lift.value_error
    assert broken[1] > lift.slope_error


def test_the_functions_in_the_picture_are_those_of_tanh():
    at, f, phi, g, psi = explanations.features()
    lift = lift_of(explanations.REACH, explanations.REACH, explanations.RANK)
    made = f[:, None] + g + phi @ psi.T
    assert np.abs(made - np.tanh(at[:, None] + at)).max() <= lift.value_error
    shown = phi[:, : explanations.SHOWN]
    np.testing.assert_allclose(shown[::-1], shown * [1, -1, 1, -1], atol=1e-3)


def test_the_command_refuses_what_it_does_not_know():
    with pytest.raises(SystemExit, match="usage"):
        main(["paint"])


def test_the_page_names_the_constants_of_the_code():
    exact_pairs, lifted_pairs = (pairs.bit_length() - 1 for pairs in additive.SLAB_PAIRS)
    slabs = f"$2^{{{exact_pairs}}}$ pairs, lifted ones of $2^{{{lifted_pairs}}}$, or {exact.BLOCK} rows"
    work = f"$2^{{{additive.MIN_LIFT_WORK.bit_length() - 1}}}$ pairs times hidden units"
    share = f"more than one activation in {lifted.ACTIVATIONS_PER_OUTLIER} is an outlier"
    for said in (
        f"where there are at least {additive.MIN_LIFT_TOKENS} queries and keys",
        f"up to {work} the exact form is the faster one",
        f"but for those of one token in {TOKENS_PER_OUTLIER},",
        f"A block of {exact.BLOCK} tokens in which {share}",
        f"in slabs of at most {slabs}",
        f"from a table of {CELLS:,} cells",
        f"products of up to {MAX_PRODUCT:,} entries",
        f"about $2^{{{CHUNK_ELEMENTS['cpu'].bit_length() - 1}}}$ numbers",
        f"The bound is ${TANH_ERROR:g}\\,\\epsilon$ (`TANH_ERROR`)",
        "activations of up to {:g} in float32 and {:g} in float64".format(*AdditiveScores.max_activation.values()),
    ):
        assert said in TEXT, said
