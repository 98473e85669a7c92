"""A real browser for tests: Debian's chromium through playwright, on a studio served from this process."""

import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from regard.studio.server import bind, server_of

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


def needs_chromium():
    """playwright's entry, or a skip of the whole module that nobody can overlook."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        missing = "playwright (pip install playwright)"
    else:
        if CHROMIUM.exists():
            return sync_playwright
        missing = f"{CHROMIUM} (apt-get install chromium)"
    said = f"NO BROWSER TESTS OF THE STUDIO: {missing} is missing. Dragging, typing and export are NOT tested."
    print(f"\n{'!' * len(said)}\n{said}\n{'!' * len(said)}", file=sys.__stderr__, flush=True)
    return pytest.skip(said, allow_module_level=True)


@contextmanager
def serving(shelf):
    """The address of a studio over this shelf, served by a thread."""
    listener = bind(0)
    port = listener.getsockname()[1]
    server = server_of(shelf, port)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


@contextmanager
def browsing(sync_playwright):
    """A chromium without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), headless=True, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()
