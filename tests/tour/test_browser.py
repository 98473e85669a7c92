"""The page in a real browser: its numbers, its controls, its addresses, and that it asks nobody for anything."""

import csv
import json
import math
import re
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import regard
from regard.regression.experiment import data
from regard.scores import Dot, Gaussian, ScaledDot
from regard.scores.names import KERNEL_SCORES
from regard.tour.files import as_csv

CHROMIUM = Path("/usr/bin/chromium")
if not CHROMIUM.exists():
    pytest.skip(f"no chromium at {CHROMIUM}: the tour's page was NOT tried in a browser", allow_module_level=True)
playwright = pytest.importorskip(
    "playwright.sync_api", reason="no playwright to drive chromium: the tour's page was NOT tried in a browser"
)

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
EXACT = 1e-6


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield running
        running.close()


@contextmanager
def opening(browser, visit):
    """What opens the page at an address; whatever it asks for beside the file, and every error, fails the test."""
    asked, errors, contexts = [], [], []

    def open_(address="", **options):
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 800}} | options))
        contexts.append(context)
        page = context.new_page()

        def decide(route):
            if route.request.url.partition("#")[0] == visit.page.as_uri():
                route.continue_()
            else:
                asked.append(route.request.url)
                route.abort()

        page.route("**/*", decide)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(visit.page.as_uri() + address)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert asked == []
    assert errors == []


@pytest.fixture
def open_page(browser, visit):
    with opening(browser, visit) as open_:
        yield open_


@pytest.fixture
def page(open_page):
    return open_page()


@pytest.fixture(scope="module")
def asked_page(browser, visit):
    """One page for all tests that only ask its functions for numbers: none of them changes what it shows."""
    with opening(browser, visit) as open_:
        yield open_()


def held(page):
    return page.evaluate("state()")


def column(numbers):
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


@pytest.mark.parametrize("kernel", KERNEL_SCORES)
def test_regression_is_that_of_attend(asked_page, kernel):
    x, y = data.samples()
    for width in (0.05, 0.3, 1.0, 5.0):
        query = column([0.0, 0.77, 1.5, 2.2, 3.9999])
        asked = regard.inspect(query, x[:, None], y[:, None], KERNEL_SCORES[kernel](width))
        for row, place in enumerate(query[:, 0].tolist()):
            found = asked_page.evaluate("([q, kernel, width]) => regress(q, kernel, width)", [place, kernel, width])
            assert found["output"] == pytest.approx(asked.output[row].item(), abs=EXACT)
            assert found["weights"] == pytest.approx(asked.weights()[row].tolist(), abs=EXACT)


def test_the_edge_of_the_boxcar_is_inside(asked_page):
    x, y = data.samples()
    width = abs(1.5 - x[7].item())
    found = asked_page.evaluate("(width) => regress(1.5, 'boxcar', width)", width)
    expected = regard.inspect(column([1.5]), x[:, None], y[:, None], KERNEL_SCORES["boxcar"](width))
    assert found["weights"][7] > 0
    assert found["weights"] == pytest.approx(expected.weights()[0].tolist(), abs=EXACT)


@pytest.mark.parametrize("spread", [0.0, 0.35, 0.6])
def test_the_three_maps_are_those_of_attend(asked_page, stations, spread):
    given = stations["norms"].data
    query, key = (torch.tensor(given[name], dtype=torch.float64) for name in ("queries", "keys"))
    key = key * (1 + spread * column(given["stretch"]))
    own = (Gaussian(2**0.25), ScaledDot(), ScaledDot())
    printed = (Gaussian(1.0), ScaledDot(2.0), ScaledDot())
    for constants, scores in ((False, own), (True, printed)):
        maps = asked_page.evaluate("([spread, printed]) => threeScores(spread, printed)", [spread, constants])
        for found, score in zip(maps, scores, strict=True):
            expected = regard.inspect(query, key, key, score).weights()
            torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), expected, rtol=0, atol=EXACT)
    if spread == 0:
        maps = asked_page.evaluate("threeScores(0, false)")
        assert maps[0] == [pytest.approx(row, abs=EXACT) for row in maps[1]]


def test_softmax_entropy_and_empty_rows_are_those_of_attend(asked_page, stations):
    scores = stations["saturation"].data["scores"][3]
    one = torch.ones(1, 1, dtype=torch.float64)
    asked = regard.inspect(one, column(scores), column(scores), Dot())
    assert asked_page.evaluate("(s) => softmax(s)", scores) == pytest.approx(asked.weights()[0].tolist(), abs=EXACT)
    entropy = asked.entropy().item() / math.log(len(scores))
    assert asked_page.evaluate("(s) => entropy(softmax(s))", scores) == pytest.approx(entropy, abs=EXACT)
    nobody = asked_page.evaluate("attend([-Infinity, -Infinity], [3, 4])")
    assert nobody == {"weights": [0, 0], "output": 0}


def test_dragging_moves_the_query_and_the_formula(page):
    box = page.locator("#query-figure").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 500, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 700, middle, steps=4)
    page.mouse.up()
    query = float(held(page)["query"])
    assert query == pytest.approx(page.evaluate("hero.back(700)"), abs=0.02)
    assert page.locator("#query-x").text_content() == f"{query:.2f}"
    x, y = data.samples()
    asked = regard.inspect(column([query]), x[:, None], y[:, None], Gaussian(0.1))
    shown = page.locator("#query-output").text_content().strip().replace("−", "-")
    assert float(shown) == pytest.approx(asked.output.item(), abs=0.0051)
    heaviest = [float(text) for text in page.locator("[data-term]").all_text_contents()[::2]]
    assert heaviest == pytest.approx(asked.top(4).weights[0].tolist(), abs=0.0051)
    page.mouse.move(box["x"] + 300, middle)
    assert float(held(page)["query"]) == query, "a move without the button is no drag"


def test_keys_are_sized_by_weight(page):
    radii = [
        float(r)
        for r in page.locator("#query-figure circle.c0").evaluate_all("all => all.map(c => c.getAttribute('r'))")
    ]
    weights = page.evaluate("regress(1.5, 'gaussian', 0.1).weights")
    order = sorted(range(len(weights)), key=weights.__getitem__)
    assert [radii[i] for i in order] == sorted(radii)


def test_stops_set_the_width_of_the_chosen_kernel(page, stations):
    page.select_option("select[name=kernel]", "epanechnikov")
    page.click("#width-own")
    own = stations["width"].data["own"]["epanechnikov"]
    assert 10 ** float(held(page)["width"]) == pytest.approx(own, rel=2e-3)
    page.click("text=nearest neighbour")
    assert page.locator("#width-now").text_content() == "0.020"


def test_an_address_brings_the_state_back(page, open_page):
    page.fill("input[name=length]", "9")
    page.select_option("select[name=language]", "hu")
    page.check("input[name=off2]")
    address = page.evaluate("location.hash")
    assert address.startswith("#at=heads&")
    again = open_page(address)
    assert held(again) == held(page)
    assert again.evaluate("at") == "heads"
    assert again.locator("section#bottleneck a.link").get_attribute("href") == address.replace("heads", "bottleneck")


def test_an_address_with_nonsense_is_survived(open_page):
    strange = open_page("#at=<img>&kernel=nothing&width=abc&length=99&look=-4&off1=maybe&constructor=1")
    assert held(strange)["kernel"] == "gaussian"
    assert held(strange)["length"] == "12"
    assert held(strange)["look"] == "0"
    assert strange.evaluate("at") == "query"


def test_a_second_address_forgets_the_first(page, visit):
    page.goto(visit.page.as_uri() + "#at=bottleneck&length=3")
    page.goto(visit.page.as_uri() + "#at=learning&language=hu")
    assert held(page)["length"] == "6"
    assert held(page)["language"] == "hu"


def test_arrow_keys_give_a_lecture(page, visit):
    beats = [(station.slug, beat) for station in visit.stations for beat in station.beats]
    seen = []
    for _ in beats:
        page.keyboard.press("ArrowRight")
        seen.append(page.evaluate("at"))
        assert page.locator("main > section:visible").count() == 1
    assert seen == [slug for slug, _ in beats]
    page.keyboard.press("ArrowRight")
    assert page.evaluate("at") == beats[-1][0], "it stays at the end"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("PageUp")
    assert page.evaluate("at") == beats[-3][0]
    page.keyboard.press("Escape")
    assert page.locator("main > section:visible").count() == 10
    assert page.evaluate("at") == beats[-3][0]


def test_arrows_in_a_control_are_the_controls(page):
    page.focus("input[name=dimension]")
    page.keyboard.press("ArrowRight")
    assert held(page)["dimension"] == "5"
    assert held(page)["lecture"] == "0"
    assert page.locator("#saturation-now").text_content() == "64"


def test_wrong_digits_are_marked(page, stations):
    page.fill("input[name=length]", "12")
    shown = stations["bottleneck"].data["lists"]["12"][0]
    slot = page.locator('[data-list="0 none"]')
    assert slot.locator("mark").count() == sum(not right for _, right in shown["none"])
    assert slot.locator("span").count() == sum(right for _, right in shown["none"])


def test_the_scrubber_and_the_language_choose_the_map(page, stations):
    learning = stations["learning"].data
    last = len(learning["updates"]) - 1
    page.fill("input[name=look]", str(last))
    page.select_option("select[name=language]", "hu")
    drawn = page.locator("#learning-figure .cell").evaluate_all("all => all.map(c => +c.getAttribute('fill-opacity'))")
    expected = [weight for row in learning["weights"]["hu"][last] for weight in row]
    assert drawn == pytest.approx(expected, abs=EXACT)
    tokens = page.locator("#learning-figure .token").all_text_contents()
    assert tokens == [*learning["sources"]["hu"], *learning["target"]]
    mass, half = learning["mass"]["hu"][last]
    assert page.locator("#learning-mass").text_content() == f"{100 * mass:.1f}% ± {100 * half:.1f}"


def test_switching_heads_off_shows_the_measured_loss(page, stations):
    heads = stations["heads"].data
    page.click("text=head 2 off")
    page.click("text=head 4 off")
    lost = heads["accuracy"][""][0] - heads["accuracy"]["13"][0]
    assert float(page.locator("#heads-lost").text_content()) == pytest.approx(100 * lost, abs=0.051)
    assert page.locator("#heads-said").text_content() == str(heads["said"]["13"][3])
    assert page.locator("#heads-1").evaluate("one => one.classList.contains('off')")


def test_a_csv_is_the_file(page, stations, tmp_path):
    for slug in ("query", "bottleneck", "errata"):
        for table in stations[slug].tables:
            with page.expect_download() as waiting:
                page.click(f"#{slug} [data-csv='{table.name}']")
            assert waiting.value.suggested_filename == f"{table.name}.csv"
            waiting.value.save_as(tmp_path / "found.csv")
            with (tmp_path / "found.csv").open(encoding="utf-8", newline="") as file:
                assert [*map(cells, csv.reader(file))] == [*map(cells, csv.reader(as_csv(table).splitlines()))]


def cells(row):
    """Numbers as numbers: JavaScript writes 1 and 1e-7 where Python writes 1.0 and 1e-07."""
    return [float(cell) if re.fullmatch(r"-?[\d.]+(e-?\d+)?", cell) else cell for cell in row]


def test_dark_and_light(open_page):
    def paper(page):
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light, dark = open_page(color_scheme="light"), open_page(color_scheme="dark")
    assert paper(light) != paper(dark)
    light.select_option("select[name=theme]", "dark")
    assert paper(light) == paper(dark)
    assert "theme=dark" in light.evaluate("location.hash")


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844), (320, 640)])
def test_nothing_sticks_out_of_the_window(open_page, width, height):
    page = open_page(viewport={"width": width, "height": height})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    tops = page.evaluate("sections.map((one) => one.getBoundingClientRect().height)")
    page.fill("input[name=length]", "2")
    page.fill("input[name=query]", "0.3")
    page.fill("input[name=spread]", "0.6")
    page.select_option("select[name=digit]", "8")
    assert page.evaluate("sections.map((one) => one.getBoundingClientRect().height)")[:5] == pytest.approx(
        tops[:5], abs=1
    )


def test_the_first_screen_has_picture_and_formula(page):
    for part in ("#query-figure", ".live"):
        box = page.locator(part).bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= 800
    assert page.locator("#query .see").bounding_box()["y"] >= 800, "prose comes after the first screen"


def test_a_handout_is_printed_light_with_all_stations_and_without_controls(open_page):
    page = open_page("#at=width&lecture=1&theme=dark")
    page.emulate_media(media="print")
    assert page.locator("main > section:visible").count() == 10
    assert page.locator("header.bar").is_hidden()
    assert page.locator("input[type=range]:visible").count() == 0
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 29, 31)"
    assert page.locator(".exercises li:visible").count() == 30
    assert page.locator(".exercises details p:visible").count() == 0, "answers stay folded"
    pdf = page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    assert pdf.count(b"/Type /Page\n") >= 10


def test_the_data_of_the_page_are_those_of_the_stations(page, stations):
    found = page.evaluate("DATA")
    for slug, station in stations.items():
        assert json.loads(json.dumps(station.data)) == {name: found[slug][name] for name in station.data}
