"""Replies: JSON in, JSON out, and never a traceback."""

import logging

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from tests.studio.conftest import ORIGIN, PORT, TestClient

from regard.studio import replies
from regard.studio.guard import Guard
from regard.studio.replies import Replies, as_json


def ask(answer, **body):
    app = Guard(Starlette(routes=[Route("/", Replies().to(answer), methods=["POST"])]), PORT)
    with TestClient(app, base_url=ORIGIN, headers={"origin": ORIGIN}) as client:
        return client.post("/", json=body)


def test_an_answer_is_json_in_its_own_letters():
    said = ask(lambda asked: {"echo": asked.text("text", 9)}, text="日本 <b>")
    assert said.json() == {"echo": "日本 <b>"}
    assert "日本" in said.text


def test_a_mistake_of_ours_is_a_sentence_and_the_log_has_the_rest(caplog):
    def broken(asked):
        raise KeyError("/home/user/secret")

    with caplog.at_level(logging.ERROR, replies.LOG.name):
        answer = ask(broken)
    assert answer.status_code == 500
    assert answer.json()["error"].startswith("The studio failed on this (KeyError); the terminal shows where.")
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert "secret" in caplog.text


def test_a_number_that_is_not_finite_never_leaves():
    with pytest.raises(ValueError, match="JSON"):
        as_json({"n": float("nan")})
