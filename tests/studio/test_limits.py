"""What is beyond a limit is refused over HTTP with a sentence, and what is just within it is answered."""

import asyncio
import threading

import pytest

from regard.studio.guard import RefusedError
from regard.studio.replies import Replies

FIT = {"kernel": "gaussian", "bandwidth": 1, "low": 0, "high": 1, "query": 0.5}
WORDS = {"score": "gaussian", "width": 1.5}


def points(count):
    return {**FIT, "x": [i / count for i in range(count)], "y": [0.5] * count}


def csv(rows):
    return {"text": "x,y\n" + "1,2\n" * rows}


@pytest.mark.parametrize(
    ("path", "within", "beyond", "status", "said"),
    [
        ("regression/fit", points(5_000), points(5_001), 422, "x: got 5,001; needed at most 5,000."),
        ("regression/table", csv(5_000), csv(5_001), 422, "got 5,001 rows of numbers; needed 1 to 5,000."),
        ("regression/table", csv(10), csv(2**18), 413, "That is more than 1 MiB, the most the studio takes at once."),
        ("translate", {"model": "given", "text": "1" * 600}, {"model": "given", "text": "1" * 601}, 422,
         "text: got 601 characters; needed at most 600."),
        ("translate", {"model": "given", "text": "1", "candidates": 10}, {"model": "given", "text": "1",
         "candidates": 11}, 422, "candidates: got 11; needed a whole number from 1 to 10."),
        ("scores/attend", {**WORDS, "queries": "a " * 24}, {**WORDS, "queries": "a " * 25}, 422,
         "queries: got 25 words; needed 1 to 24 words."),
        ("scores/attend", {**WORDS, "queries": "a", "keys": "a " * 24}, {**WORDS, "queries": "a", "keys": "a " * 25},
         422, "keys: got 25 words; needed 1 to 24 words."),
        ("scores/attend", {**WORDS, "queries": "a" * 30}, {**WORDS, "queries": "a" * 31}, 422,
         "queries: got a word of 31 letters; needed words of at most 30."),
    ],
)  # fmt: skip
def test_beyond_a_limit_is_a_sentence(client, path, within, beyond, status, said):
    assert client.post(f"/api/{path}", json=within).status_code == 200
    answer = client.post(f"/api/{path}", json=beyond)
    assert answer.status_code == status
    assert said in answer.json()["error"]


def test_a_full_load_of_points_fits_into_a_request(client):
    numbers = [-1.2345678901234567e-100 * (1 + i) for i in range(5_000)]
    assert client.post("/api/regression/fit", json={**FIT, "x": numbers, "y": numbers}).status_code == 200


def test_four_requests_compute_at_a_time_and_more_than_64_pending_are_refused():
    go, running = threading.Event(), []

    def compute():
        running.append(1)
        go.wait(30)
        return {}

    async def ask():
        endpoint = Replies().about(compute)
        asked = [asyncio.create_task(endpoint(None)) for _ in range(70)]
        while len(running) < 4:
            await asyncio.sleep(0.01)
        at_once = len(running)
        go.set()
        return at_once, await asyncio.gather(*asked, return_exceptions=True)

    at_once, answers = asyncio.run(ask())
    assert at_once == 4
    refused = [answer for answer in answers if isinstance(answer, RefusedError)]
    assert [answer.status_code for answer in answers if answer not in refused] == [200] * 64
    assert [(one.status, one.sentence) for one in refused] == [
        (503, "The studio has 64 other requests to answer. Try again in a moment.")
    ] * 6
