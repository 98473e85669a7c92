"""How long the studio takes from a dragged slider to the painted frame: `python -m benchmarks.studio`.

A real chromium loads 1,000 points and drags the width 50 times, one step at a time; each is timed in the page, from
the input event to the first moment after the frame that shows its answer. The result is JSON.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tests.studio.browser import browsing

from benchmarks.measure import machine
from regard.regression.experiment import data

POINTS = 1_000
DRAGS = 50
WARM_UP = 5
KERNELS = ("gaussian", "epanechnikov", "tricube")
GOAL = 0.060
OUT = Path(__file__).parent / "results" / "studio.json"

# In the page: the time of the last input event, and of the first moment after the frame in which its answer is drawn.
WATCH = """() => {
    window.painted = [];
    let since = null;
    document.getElementById("fit-width").addEventListener("input", (event) => { since = event.timeStamp; }, true);
    document.getElementById("fit").addEventListener("drawn", () => {
        if (since === null) return;
        const begin = since;
        since = null;
        requestAnimationFrame(() => {
            const after = new MessageChannel();
            after.port1.onmessage = () => window.painted.push(performance.now() - begin);
            after.port2.postMessage(null);
        });
    });
}"""


def run(address: str, browser) -> list[dict]:
    """One row a kernel."""
    x, y = data.samples(POINTS)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "points.csv"
        file.write_text("x,y\n" + "".join(f"{a},{b}\n" for a, b in zip(x.tolist(), y.tolist(), strict=True)))
        for kernel in KERNELS:
            # What waits inside the page is a script of its own, which the policy would refuse.
            page = browser.new_page(viewport={"width": 1360, "height": 900}, bypass_csp=True)
            page.goto(f"{address}#regression?kernel={kernel}")
            page.wait_for_selector("#room-regression[aria-busy=false]")
            page.locator("#fit-file").set_input_files(file)
            page.wait_for_function("document.getElementById('fit-count').textContent.startsWith('1,000 ')")
            seconds = _drags(page)
            page.close()
            what = {"what": "width dragged to painted frame", "kernel": kernel, "points": POINTS}
            rows.append(what | _summary(seconds))
    return rows


def _drags(page) -> list[float]:
    """Seconds of each drag; the slider goes to and fro around its middle."""
    page.evaluate(WATCH)
    box = page.locator("#fit-width").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 2, middle)
    page.mouse.down()
    for step in range(WARM_UP + DRAGS):
        page.wait_for_function("document.getElementById('fit-picture').getAttribute('aria-busy') === 'false'")
        count = page.evaluate("painted.length")
        page.mouse.move(box["x"] + box["width"] * (0.3 + 0.4 * ((step * 7) % 50) / 50), middle)
        page.wait_for_function(f"painted.length > {count}")
    page.mouse.up()
    return [milliseconds / 1000 for milliseconds in page.evaluate("painted")[-DRAGS:]]


def _summary(seconds: list[float]) -> dict:
    ordered = sorted(seconds)
    return {
        "drags": len(ordered),
        "median": statistics.median(ordered),
        "p20": ordered[len(ordered) // 5],
        "p80": ordered[4 * len(ordered) // 5],
        "slowest": ordered[-1],
    }


@contextmanager
def studio() -> Iterator[str]:
    """The address of a studio as users start it."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "regard", "studio", "--no-browser", "--cache", cache]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            found = re.search(r"http://[\d.:]+/", process.stdout.readline())
            assert found
            try:
                yield found[0]
            finally:
                process.terminate()


def main(out: Path) -> None:
    """Measure, write, and say how it compares with the goal."""
    from playwright.sync_api import sync_playwright

    with studio() as address, browsing(sync_playwright) as browser:
        rows = run(address, browser)
        version = browser.version
    kept = {
        "suite": "studio", "device": "cpu", "date": datetime.now(UTC).date().isoformat(),
        "machine": machine("cpu") | {"chromium": version}, "load": os.getloadavg()[0], "goal": GOAL, "rows": rows,
    }  # fmt: skip
    out.write_text(json.dumps(kept, indent=1) + "\n")
    for row in rows:
        median, most = 1000 * row["median"], 1000 * row["p80"]
        print(f"{row['kernel']}: median {median:.0f} ms of {row['drags']} drags, 80% within {most:.0f} ms")
    print(f"load {kept['load']:.1f}; goal {1000 * GOAL:.0f} ms; written to {out}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
