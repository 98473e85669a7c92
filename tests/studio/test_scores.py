"""The score laboratory's answers: masks by words and by hand, heads switched off, every score in a line."""

import pytest
import torch

from regard.masks import Mask
from regard.studio.asked import Asked
from regard.studio.heads import SCORES, TASKS
from regard.studio.scores import mask_of

SENTENCE = "the cat sat on the mat"


def ask(client, **changes):
    return client.post("/api/scores/attend", json={"queries": SENTENCE, "score": "gaussian", "width": 1.5, **changes})


@pytest.mark.parametrize("score", SCORES)
def test_weights_of_every_score_are_weights(client, score):
    answer = ask(client, score=score).json()
    assert [head["title"] for head in answer["heads"]] == [task.title for task in TASKS]
    for head in answer["heads"]:
        sums = torch.tensor(head["weights"]).sum(-1)
        assert bool(((sums - 1).abs() < 1e-5).logical_or(sums == 0).all())
    assert [line["score"] for line in answer["every_score"]] == list(SCORES)
    chosen = answer["every_score"][SCORES.index(score)]
    assert chosen["on_right"] == [head["on_right"] for head in answer["heads"]]


@pytest.mark.parametrize(
    ("asked", "mask"),
    [
        ({}, Mask.keep(torch.ones(5, 5, dtype=torch.bool))),
        ({"causal": True}, Mask.causal()),
        ({"window": True, "left": 1, "right": 0}, Mask.window(1, 0)),
        ({"lengths": True, "length": 2}, Mask.lengths(torch.tensor(2))),
        ({"causal": True, "window": True, "left": 2, "right": 2, "lengths": True, "length": 4},
         Mask.causal() & Mask.window(2, 2) & Mask.lengths(torch.tensor(4))),
    ],
)  # fmt: skip
def test_words_of_a_mask_are_the_librarys(asked, mask):
    assert torch.equal(mask_of(Asked(asked), 5, 5), mask.to_sdpa((), 5, 5))


def test_cells_changed_by_hand_come_after_the_words():
    allowed = mask_of(Asked({"causal": True, "edits": [[0, 4, True], [3, 0, False], [20, 20, False]]}), 5, 5)
    expected = Mask.causal().to_sdpa((), 5, 5).clone()
    expected[0, 4], expected[3, 0] = True, False
    assert torch.equal(allowed, expected)


def test_a_forbidden_cell_has_no_weight_and_an_empty_row_is_told(client):
    answer = ask(client, edits=[[1, key, False] for key in range(6)]).json()
    assert answer["blind_rows"] == 1
    for head in answer["heads"]:
        assert set(head["weights"][1]) == {0.0}
        assert head["answers"][1] is None
        assert head["correct"][1] is False or head["correct"][1] is None


def test_switching_a_head_off_takes_away_its_answers_and_its_share(client):
    everything, silent = ask(client).json(), ask(client, off=[1]).json()
    assert everything["effect"] | {"change": None} == {
        "off": [], "change": None, "mean_change": 0.0, "asked": 22, "right_with_all": 22, "right_now": 22,
    }  # fmt: skip
    assert silent["effect"]["right_now"] == 22 - 5  # the first word has none before it
    assert 0.2 < silent["effect"]["mean_change"] < 0.8
    all_off = ask(client, off=[0, 1, 2, 3]).json()["effect"]
    assert all_off["change"] == pytest.approx([1.0] * 6)
    assert all_off["right_now"] == 0


def test_a_causal_mask_blinds_the_head_that_looks_ahead(client):
    heads = ask(client, causal=True).json()["heads"]
    assert heads[2]["on_right"] == 0
    assert not any(heads[2]["correct"])
    assert heads[1]["on_right"] > 0.9


def test_keys_may_be_another_sentence(client):
    answer = ask(client, keys="a mat the dog", causal=True).json()
    assert answer["keys"] == ["a", "mat", "the", "dog"]
    assert len(answer["allowed"]) == 6
    assert answer["heads"][0]["correct"] == [False, None, None, None, True, True]  # causal: "the" comes third


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"queries": ""}, "queries: got 0 words"),
        ({"queries": "a " * 400}, "queries: got 800 characters; needed at most 744"),
        ({"queries": 3}, "queries: got 3; needed text"),
        ({"score": "softmax"}, "score: got 'softmax'; needed one of dot"),
        ({"width": 0}, "width: got 0; needed a number from 0.25 to 32"),
        ({"dim": 1000}, "dim: got 1000; needed a whole number from 4 to 64"),
        ({"off": [7]}, "off: got 7; needed numbers of heads, from 0 to 3"),
        ({"off": [True]}, "off: got True"),
        ({"off": [0] * 9}, "off: got 9; needed at most 4"),
        ({"edits": [[0, 1]]}, "edits: got [0, 1]; needed cells as [query, key, allowed]"),
        ({"edits": [[-1, 0, True]]}, "edits: got [-1, 0, True]"),
        ({"edits": [[0, 0, True]] * 37}, "edits: got 37; needed at most 36"),
        ({"window": True, "left": -1}, "left: got -1"),
        ({"causal": 1}, "causal: got 1; needed true or false"),
    ],
)
def test_what_is_wrong_is_one_sentence(client, changes, said):
    answer = ask(client, **changes)
    assert answer.status_code == 422
    assert said in answer.json()["error"]


def test_the_page_is_told_what_there_is(client):
    told = client.get("/api/scores").json()
    assert told["scores"] == list(SCORES)
    assert len(told["heads"]) == 4
