"""The lines of Python that the studio's panels show are run, and give what the studio itself answers."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from tests.studio.browser import needs_chromium

from regard.scores.names import KERNEL_SCORES
from regard.studio.heads import SCORES

needs_chromium()

MASKS = {
    "no mask": "",
    "causal": "causal=true",
    "window": "window=true&left=1&right=2",
    "lengths": "lengths=true&length=3",
    "all together": "causal=true&window=true&left=3&right=0&lengths=true&length=5",
    "cells by hand": "edits=0.1.0,2.2.0,20.20.0",
    "cells by hand over words": "causal=true&edits=0.4.1,3.0.0",
    "fewer keys": "keys=dog sat mat&causal=true&window=true&left=2&right=1&edits=5.2.1",
    "more keys": "keys=a b c d e f g the cat&causal=true",
    "only words of other lengths": "keys=the cat&lengths=true&length=1&dim=7&spread=0.5&width=1.25",
}


def asked(page, path, act, **sent):
    """The answer to the question that an act on the page asks, of those with these values."""

    def is_meant(response):
        return response.url.endswith(path) and all(
            response.request.post_data_json.get(name) == value for name, value in sent.items()
        )

    with page.expect_response(is_meant) as waiting:
        act()
    return waiting.value.json()


def lines(page, panel, part):
    """The lines of a panel, once this part is in them."""
    includes = "([panel, part]) => document.querySelector(panel).textContent.includes(part)"
    page.wait_for_function(includes, arg=[panel, part])
    return page.locator(panel).text_content()


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_every_score_is_what_its_lines_give(opened, mask):
    page = opened(f'#scores?queries=the "cat" sat on the mat&score=gaussian&{mask}')
    page.wait_for_selector("#sc-table tr")
    for score in sorted(SCORES, key=lambda score: score == "gaussian"):  # the page begins with this one
        choose = partial(page.locator("#sc-score").select_option, score)
        answer = asked(page, "/api/scores/attend", choose, score=score)
        written = {"additive": "Additive.of", "bilinear": "Bilinear(", "cosine": "Cosine("}.get(score, f'"{score}"')
        found = run(lines(page, "#sc-python", written))["found"]
        weights = torch.tensor([head["weights"] for head in answer["heads"]], dtype=torch.float64)
        torch.testing.assert_close(found.weights(), weights, rtol=0, atol=1e-12, msg=score)


@pytest.mark.parametrize("degree", [0, 1])
def test_every_kernel_fits_what_its_lines_fit(opened, degree):
    page = opened(f"#regression?kernel=gaussian&width=0.7&query=1.25&level=0.8&degree={degree}")
    page.wait_for_selector("#fit-words:has-text('band')")
    for kernel in sorted(KERNEL_SCORES, key=lambda kernel: kernel == "gaussian"):
        choose = partial(page.locator("#fit-kernel").select_option, kernel)
        answer = asked(page, "/api/regression/fit", choose, kernel=kernel)
        code = lines(page, "#fit-python", f'"{kernel}"')
        points = page.evaluate("fetch('/api/regression').then((reply) => reply.json())")
        X, y = np.array(points["x"])[:, None], np.array(points["y"])  # noqa: N806
        places = np.array(answer["places"])[:, None]
        with warnings.catch_warnings(action="ignore"):  # of places without points
            predict, weights, band = run_lines(code, {"X": X, "y": y, "places": places})
        assert predict == pytest.approx([answer["at"]["mean"]], rel=1e-9)
        np.testing.assert_allclose(weights[0], answer["weights"], atol=1e-9)
        if answer.get("upper"):
            np.testing.assert_allclose(np.array(answer["upper"], dtype=float), band.upper, rtol=1e-7)


@pytest.mark.parametrize(("candidates", "unit"), [(1, "tokens"), (5, "words"), (10, "tokens")])
def test_a_translation_is_what_its_lines_give(opened, learnt, candidates, unit):
    wanted, cache, _ = learnt
    page = opened(f"#translation?candidates={candidates}&unit={unit}")
    page.wait_for_selector("#tr-choices label")
    write = partial(page.get_by_role("textbox", name="Sentence").fill, '5. "Mai" 2010')
    answer = asked(page, "/api/translate", write, text='5. "Mai" 2010')
    code = lines(page, "#tr-python", "Mai").replace('"folder"', repr(str(cache.kept(wanted))))
    ((text, alignment, others),) = run_lines(code, {})
    assert [text, *(one.text for one in others)] == [one["text"] for one in answer["candidates"]]
    np.testing.assert_allclose(alignment.weights.tolist(), answer["candidates"][0]["weights"], atol=1e-6)


def run(code):
    names = {}
    exec(compile(code, "panel", "exec"), names)
    return names


def run_lines(code, names):
    """The values of the lines that are expressions."""
    found = []
    for line in code.splitlines():
        try:
            compile(line, "panel", "eval")
        except SyntaxError:
            exec(compile(line, "panel", "exec"), names)
        else:
            found.append(eval(line, names))
    return found
