"""The studio in a real browser: dragging, drawing, typing, export, wrong input, and no request to anywhere else."""

import csv
import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.studio.browser import needs_chromium

from regard.regression import NadarayaWatson
from regard.studio.regression import offer

needs_chromium()
from playwright.sync_api import expect  # noqa: E402 (only where there is a browser)

HOSTILE = "<img src=x onerror=document.title='taken'> 5. Oktober 2010"


def drawn(page, selector):
    return page.locator(selector).first.get_attribute("d")


def drag(page, selector, start, end, steps=8):
    """By the mouse, from one share of an element's width to another, at its middle or at a share of its height."""
    box = page.locator(selector).bounding_box()
    points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (start, end)]
    page.mouse.move(*points[0])
    page.mouse.down()
    page.mouse.move(*points[1], steps=steps)
    page.mouse.up()


def test_dragging_width_and_query_moves_curve_band_and_weights(opened):
    page = opened()
    expect(page.locator("#fit-words")).to_contain_text("the fit is")
    seen = []
    for selector, end in (("#fit-width", (0.8, 0.5)), ("#fit-query", (0.9, 0.5)), ("#fit", (0.2, 0.3))):
        before = [drawn(page, path) for path in (".fitted", ".banded", ".weighted", ".querying")]
        formula = page.locator("#fit-formula").inner_text()
        drag(page, selector, (0.5, end[1]), end)
        expect(page.locator("#fit-formula")).not_to_have_text(formula)
        expect(page.locator("#fit-picture")).to_have_attribute("aria-busy", "false")
        after = [drawn(page, path) for path in (".fitted", ".banded", ".weighted", ".querying")]
        seen.append([old != new for old, new in zip(before, after, strict=True)])
    # The width moves curve, band and weights; the query moves the weights and itself.
    assert seen == [[True, True, True, False], [False, False, True, True], [False, False, True, True]]


def test_what_is_saved_is_what_the_estimator_says(opened):
    page = opened("#regression?kernel=epanechnikov&width=0.7&query=1.25&level=0.8")
    expect(page.locator("#fit-words")).to_contain_text("80% band")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as CSV: regression").click()
    rows = list(csv.DictReader(io.StringIO(saved.value.path().read_text(encoding="utf-8"))))
    X, y = np.array(offer()["x"])[:, None], np.array(offer()["y"])  # noqa: N806
    model = NadarayaWatson("epanechnikov", 0.7).fit(X, y)
    curve = [row for row in rows if row["kind"] == "curve"]
    band = model.confidence_band([[float(row["x"])] for row in curve], level=0.8)
    for name, column in (("y", band.mean), ("lower", band.lower), ("upper", band.upper)):
        np.testing.assert_allclose([float(row[name]) for row in curve], column, rtol=1e-9)
    weights = [float(row["weight at the query"]) for row in rows if row["kind"] == "point"]
    np.testing.assert_allclose(weights, model.weights([[1.25]])[0], atol=1e-12)


def test_points_are_drawn_erased_and_typed(opened):
    page = opened()
    page.get_by_role("button", name="Clear", exact=True).click()
    expect(page.locator("#fit-words")).to_contain_text("No points")
    page.get_by_label("draws points").check()
    for place in ((0.3, 0.3), (0.5, 0.2), (0.7, 0.4)):
        drag(page, "#fit", place, place, 1)
    expect(page.locator("#fit-count")).to_contain_text("3 of at most 5,000")
    drag(page, "#fit", (0.3, 0.5), (0.6, 0.5), 30)
    expect(page.locator("#fit-words")).to_contain_text("the fit is")
    count = int(page.locator("#fit-count").inner_text().split()[0])
    assert count > 10
    page.get_by_label("erases points").check()
    drag(page, "#fit", (0.3, 0.3), (0.3, 0.3), 1)
    expect(page.locator("#fit-count")).to_contain_text(f"{count - 1} of")
    page.get_by_label("x", exact=True).first.fill("2")
    page.get_by_label("y", exact=True).first.fill("3")
    page.get_by_role("button", name="Add").press("Enter")
    expect(page.locator("#fit-count")).to_contain_text(f"{count} of")


def test_a_file_is_loaded_and_its_columns_chosen(opened, tmp_path):
    file = tmp_path / "data.csv"
    file.write_text("name;a;b;c\n" + "".join(f"n;{i};{i * i % 7};{-i}\n" for i in range(40)), encoding="utf-8")
    page = opened()
    page.locator("#fit-file").set_input_files(file)
    expect(page.locator("#fit-count")).to_contain_text("40 of")
    page.locator("#fit-y-column").select_option("c")
    expect(page.locator("#fit-words")).to_contain_text("the fit is −")
    page.get_by_role("button", name="leave-one-out").click()
    expect(page.locator("#fit-width-shown")).not_to_have_text("3.58")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "file: got an empty file"),
        (f"a,b\n1,2\n{HOSTILE},4\n", 'file: got "<img src=x onerror=document.title='),
        ("a,b\n1,2\n3\n", "1 cells in line 3"),
    ],
)
def test_a_bad_file_is_a_sentence_and_never_html(opened, tmp_path, content, said):
    file = tmp_path / "bad.csv"
    file.write_text(content, encoding="utf-8")
    page = opened()
    page.locator("#fit-file").set_input_files(file)
    expect(page.get_by_role("alert")).to_contain_text(said)
    assert page.locator("#problem img").count() == 0
    assert page.title() == "Kernel regression · regard studio"
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#problem")).to_be_hidden()


@pytest.mark.parametrize("rows", [130_000, 300_000], ids=["too large as JSON", "too large"])
def test_a_file_that_is_too_large_is_not_sent(opened, tmp_path, rows):
    file = tmp_path / "large.csv"
    file.write_text("a,b\n" + "1,2,3,4\n" * rows, encoding="utf-8", newline="")
    assert (file.stat().st_size < 2**20) == (rows == 130_000)
    page = opened()
    page.locator("#fit-file").set_input_files(file)
    expect(page.get_by_role("alert")).to_contain_text("The file makes a request of more than 1 MiB. Take a sample;")


def test_a_point_without_numbers_is_a_sentence(opened):
    page = opened()
    page.get_by_role("button", name="Add").click()
    expect(page.get_by_role("alert")).to_contain_text("A point needs two numbers.")


def test_pictures_are_saved_with_their_colours(opened):
    page = opened(color_scheme="dark")
    expect(page.locator("#fit-words")).to_contain_text("the fit is")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as SVG: regression").click()
    text = saved.value.path().read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "class=" not in text
    assert "var(" not in text
    assert "rgb(86, 180, 233)" in text  # the accent of the dark page
    assert "weight at the query" in "".join(root.itertext())
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as PNG: regression").click()
    picture = saved.value.path().read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert int.from_bytes(picture[16:20], "big") > 1000
    expect(page.locator("#saved")).to_have_text("regression.png is saved.")


def test_a_typed_sentence_is_translated_and_aligned(opened):
    page = opened("#translation")
    expect(page.locator("#tr-answer")).to_contain_text(re.compile(r"^[0-9-]+$"))
    page.get_by_role("textbox", name="Sentence").fill("5. Oktober 2010")
    expect(page.locator("#tr-map text", has_text="k")).to_have_count(1)
    expect(page.locator("#tr-choices label")).to_have_count(5)
    first = page.locator("#tr-answer").inner_text()
    labels = "".join(page.locator("#tr-map text").all_text_contents())
    assert "5.▁Oktober▁2010" in labels
    assert page.locator("#tr-map .cell").count() > 20
    assert page.locator("#tr-lines .link").count() > 5
    page.locator("#tr-choices input").nth(1).check()
    expect(page.locator("#tr-answer")).not_to_have_text(first)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as CSV: alignment", exact=True).click()
    rows = list(csv.reader(io.StringIO(saved.value.path().read_text(encoding="utf-8"))))
    assert "".join(rows[0][1:]) == "5.▁Oktober▁2010"
    assert all(0.3 < sum(map(float, row[1:])) < 1.001 for row in rows[1:])


def test_hostile_text_stays_text(opened):
    page = opened("#translation")
    expect(page.locator("#tr-answer")).to_contain_text(re.compile(r"[0-9]"))
    page.get_by_role("textbox", name="Sentence").fill(HOSTILE)
    expect(page.locator("#tr-unknown")).to_contain_text("does not know")
    page.get_by_label("Aligned").select_option("words")
    expect(page.locator("#tr-map text", has_text="<img")).to_have_count(1)
    page.locator("#tr-numbers summary").click()
    expect(page.locator("#tr-table th", has_text="<img")).to_have_count(1)
    assert page.locator("img").count() == 0
    assert page.title() == "Translation · regard studio"


def test_too_long_a_sentence_is_a_sentence(opened):
    page = opened("#translation")
    expect(page.locator("#tr-answer")).to_contain_text(re.compile(r"[0-9]"))
    page.get_by_role("textbox", name="Sentence").fill("1" * 601)
    expect(page.get_by_role("alert")).to_contain_text("text: got 601 characters; needed at most 600.")


def test_the_training_can_be_walked_through(opened):
    page = opened("#translation")
    moment = page.get_by_role("slider", name="Moment")
    expect(moment).to_have_value(re.compile(r"^[1-9]"))
    last = page.locator("#tr-frame .cell").evaluate_all("cells => cells.map(cell => cell.getAttribute('fill-opacity'))")
    moment.focus()
    page.keyboard.press("Home")
    expect(page.locator("#tr-moment-shown")).to_have_text("update 0")
    flat = page.locator("#tr-frame .cell").evaluate_all("cells => cells.map(cell => cell.getAttribute('fill-opacity'))")
    assert max(map(float, flat)) < max(map(float, last))
    page.get_by_label("English").check()
    expect(page.locator("#tr-frame text", has_text="▁")).not_to_have_count(0)


def test_cells_of_the_mask_by_mouse_and_by_keys(opened):
    page = opened("#scores")
    expect(page.locator("#sc-effect")).to_contain_text("42 of 42")
    drag(page, "#sc-map .cell >> nth=0", (0.5, 0.5), (0.5, 0.5), 1)
    expect(page.locator("#sc-edits")).to_have_text("1 cell changed by hand")
    expect(page.locator("#sc-cell")).to_have_text("Query “the” (1), key “the” (1): forbidden.")
    page.locator("#sc-editor").focus()
    for key in ("ArrowRight", "ArrowDown", "Space"):
        page.keyboard.press(key)
    expect(page.locator("#sc-cell")).to_have_text("Query “cat” (2), key “cat” (2): forbidden.")
    expect(page.locator("#sc-edits")).to_have_text("2 cells changed by hand")
    assert drawn(page, "#sc-map .forbidden").count("M") == 4  # two strokes a cross
    page.get_by_label("causal").check()
    expect(page.locator("#sc-effect")).not_to_contain_text("42 of 42")
    page.get_by_role("button", name="Clear edits").click()
    expect(page.locator("#sc-edits")).to_have_text("0 cells changed by hand")


def test_scores_and_heads_are_chosen_and_the_address_knows(opened):
    page = opened("#scores")
    expect(page.locator("#sc-effect")).to_contain_text("All heads are on")
    page.get_by_role("combobox", name="Score").select_option("additive")
    page.get_by_role("switch", name="Head “word before” is on").uncheck()
    page.get_by_label("word after", exact=True).check()
    expect(page.locator("#sc-effect")).to_contain_text("Without “word before” the output moves by")
    expect(page.locator("#sc-table tr.chosen th")).to_have_text("additive")
    expect(page.locator("#sc-head-title")).to_have_text("Head “word after”")
    expect(page).to_have_url(re.compile("score=additive.*head=2.*off=1"))
    again = opened(page.url.partition("/#")[2].join(("#", "")))
    expect(again.locator("#sc-effect")).to_contain_text("Without “word before”")
    expect(again.get_by_role("combobox", name="Score")).to_have_value("additive")
    expect(again.locator("#sc-head-title")).to_have_text("Head “word after”")


def test_wrong_words_are_a_sentence(opened):
    page = opened("#scores")
    expect(page.locator("#sc-effect")).to_contain_text("All heads are on")
    page.get_by_label("Queries").fill("a " * 25)
    expect(page.get_by_role("alert")).to_contain_text("queries: got 25 words; needed 1 to 24 words.")


def test_own_points_are_in_the_address(opened):
    page = opened("#regression?data=own&points=0,1;1,2;2,0.5&kernel=boxcar&width=1.2")
    expect(page.locator("#fit-count")).to_contain_text("3 of")
    expect(page.locator("#fit-kernel")).to_have_value("boxcar")
    expect(page.locator("#fit-width-shown")).to_have_text("1.2")


def test_rooms_are_entered_by_keys_and_say_so(opened):
    page = opened()
    page.get_by_role("link", name="Scores").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#title-scores")).to_be_focused()
    expect(page.get_by_role("link", name="Scores")).to_have_attribute("aria-current", "page")
    expect(page.locator("#room-regression")).to_be_hidden()


@pytest.mark.parametrize("room", ["regression", "translation", "scores"])
def test_a_phone_needs_no_sideways_scrolling(opened, room):
    page = opened(f"#{room}", viewport={"width": 375, "height": 700})
    expect(
        page.locator({"regression": "#fit-words", "translation": "#tr-answer", "scores": "#sc-effect"}[room])
    ).to_contain_text(re.compile(r"\d"))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if room == "scores":  # every score with every head, without a hidden column
        assert page.locator("#sc-table").evaluate("at => at.offsetWidth <= at.parentElement.clientWidth")


def test_colours_follow_the_system_and_the_button(opened):
    page = opened(color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    page.get_by_role("button", name="Colours: system").click()
    assert page.evaluate(paper) != dark
    page.get_by_role("button", name="Colours: light").click()
    assert page.evaluate(paper) == dark
