"""What the studio's tests share: a small model of dates, learnt once, and a client that asks as the page does."""

import warnings

import pytest
from tests.studio.browser import browsing, needs_chromium, serving

from regard.studio.app import build
from regard.studio.models.cache import Cache
from regard.studio.models.learner import learn
from regard.studio.models.learning import LearningShelf
from regard.studio.models.shelf import Shelf
from regard.studio.models.wanted import Wanted
from regard.translation.recipe import preset

with warnings.catch_warnings(action="ignore"):  # it would rather stand on a successor of httpx
    from starlette.testclient import TestClient

PORT = 8123
ORIGIN = f"http://127.0.0.1:{PORT}"
SIZES = {"train": 400, "valid": 20, "test": 8, "locales": ["de", "en"]}


def small(name="small", **flags):
    """A model that learns a little within seconds, looked at often."""
    flags = {"hidden": 16, "embedding": 16, "attention_dim": 16, "epochs": 2, "warmup": 5, "save_every": 2, **flags}
    return Wanted(name, f"{name} model", preset("dates").with_flags(flags), SIZES)


@pytest.fixture(scope="session")
def learnt(tmp_path_factory):
    """(wanted, cache, what was told): a training in this process."""
    cache, told = Cache(tmp_path_factory.mktemp("cache")), []
    cache.check()
    wanted = small()
    learn(wanted, cache, told.append)
    return wanted, cache, told


@pytest.fixture(scope="session")
def shelf(learnt):
    wanted, cache, _ = learnt
    return Shelf.of_folder(cache.kept(wanted))


@pytest.fixture
def client(shelf):
    with TestClient(build(shelf, PORT), base_url=ORIGIN, headers={"origin": ORIGIN}) as made:
        yield made


@pytest.fixture(scope="module")
def address(learnt):
    wanted, cache, _ = learnt
    with serving(LearningShelf(cache, [wanted])) as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    """A browser for one module: as long as it runs, `asyncio.run` is refused in this thread."""
    with browsing(needs_chromium()) as found:
        yield found


@pytest.fixture
def opened(browser, address):
    """Opens a room; afterwards nothing may have been asked of another host, and no script may have failed."""
    contexts, asked, failed = [], [], []

    def open_room(room="", **settings):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: failed.append(str(error)))
        page.on("console", lambda message: failed.append(message.text) if message.type == "error" else None)
        page.goto(address + room)
        page.wait_for_selector("main > section:not([hidden])[aria-busy=false]")
        return page

    yield open_room
    for context in contexts:
        context.close()
    assert asked
    assert [url for url in asked if not url.startswith((address, "blob:"))] == []
    refused = "Failed to load resource: the server responded with a status of 422"
    assert [text for text in failed if not text.startswith(refused)] == []
