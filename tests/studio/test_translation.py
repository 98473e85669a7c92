"""The translation room's answers are the translator's; a model is a name from the menu and never a path."""

import pytest
from tests.studio.conftest import ORIGIN, PORT, TestClient
from tests.translation.models import random_model, save_model

from regard.studio.limits import MOST_CHARACTERS
from regard.translation import Translator

SENTENCE = "5. Oktober 2010"


def ask(client, **changes):
    return client.post("/api/translate", json={"model": "given", "text": SENTENCE, **changes})


def test_candidates_and_alignments_are_the_translators(client, learnt):
    wanted, cache, _ = learnt
    answer = ask(client, candidates=3).json()
    best = Translator.load(cache.kept(wanted)).translate([SENTENCE], beams=5, nbest=3)[0]
    assert [one["text"] for one in answer["candidates"]] == [one.text for one in (best, *best.others)]
    assert answer["unit"] == "tokens"
    assert answer["source"] == list(SENTENCE.replace(" ", "▁"))
    for shown, one in zip(answer["candidates"], (best, *best.others), strict=True):
        assert shown["log_probability"] == one.log_probability
        assert shown["target"] == list(one.tokens)
        expected = one.alignment_of_tokens.weights
        assert len(shown["weights"]) == len(expected)
        for row, right in zip(shown["weights"], expected.tolist(), strict=True):
            assert row == pytest.approx(right, abs=1e-6)


def test_words_can_be_aligned_instead(client):
    answer = ask(client, unit="words").json()
    assert answer["source"] == ["5.", "Oktober", "2010"]
    assert all(len(row) == 3 for row in answer["candidates"][0]["weights"])


def test_signs_that_the_model_does_not_know_are_counted(client):
    assert ask(client).json()["unknown"] == 0
    assert ask(client, text="5. Oktober 2010 ☃☃").json()["unknown"] == 2


def test_text_comes_back_as_text(client):
    answer = ask(client, text="<img src=x onerror=alert(1)>")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["text"] == "<img src=x onerror=alert(1)>"


@pytest.mark.parametrize("text", ["", "   "])
def test_an_empty_sentence_is_empty(client, text):
    assert ask(client, text=text).json()["candidates"][0]["text"] == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"text": "x" * (MOST_CHARACTERS + 1)}, "text: got 601 characters; needed at most 600"),
        ({"text": None}, "text: got nothing"),
        ({"candidates": 11}, "candidates: got 11; needed a whole number from 1 to 10"),
        ({"candidates": 0}, "candidates: got 0"),
        ({"unit": "bytes"}, "unit: got 'bytes'"),
        ({"model": ""}, "model: got ''; needed one of given"),
        ({"model": "/etc"}, "model: got '/etc'; needed one of given"),
        ({"model": "../../other-model"}, "model: got '../../other-model'"),
        ({"model": ["given"]}, "model: got ['given']; needed text"),
    ],
)
def test_what_is_wrong_is_one_sentence(client, changes, said):
    answer = ask(client, **changes)
    assert answer.status_code == 422
    assert said in answer.json()["error"]


def test_half_a_character_is_refused(client):
    body = '{"model": "given", "text": "5. Oktober \\ud800"}'
    answer = client.post("/api/translate", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("text: got half of a character; needed Unicode text.")


def test_a_folder_that_exists_but_was_not_given_is_no_model(client, tmp_path):
    folder = save_model(tmp_path / "other", random_model())
    answer = ask(client, model=str(folder))
    assert answer.status_code == 422
    assert "another folder is given when the studio is started" in answer.json()["error"]


def test_the_menu_of_a_given_folder_has_that_model_alone(client, learnt):
    (model,) = client.post("/api/models/begin", json={}).json()["models"]
    assert (model["name"], model["state"], model["title"]) == ("given", "ready", learnt[0].folder)
    assert model["parameters"] > 1000
    assert client.post("/api/models/looks", json={"model": "given", "first": 0}).json()["frames"] == []


def test_a_model_without_attention_has_nothing_to_align(tmp_path):
    from regard.studio.app import build
    from regard.studio.models.shelf import Shelf

    shelf = Shelf.of_folder(save_model(tmp_path / "plain", random_model(attention="none")))
    with TestClient(build(shelf, PORT), base_url=ORIGIN, headers={"origin": ORIGIN}) as client:
        answer = ask(client, text="ab cd").json()
    assert answer["candidates"][0]["weights"] is None
