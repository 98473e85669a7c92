"""The score laboratory's answers: the same queries and keys under any score and mask, head by head."""

from typing import Any

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.masks import Mask
from regard.studio.asked import Asked
from regard.studio.heads import SCORES, TASKS, Heads, right_keys
from regard.studio.limits import MOST_LETTERS, MOST_WORDS
from regard.studio.words import split, tokens

DIMS = (4, 64)
WIDTHS = (0.25, 32.0)
SPREADS = (0.0, 1.0)
MOST_TEXT = MOST_WORDS * (MOST_LETTERS + 1)


def offer() -> dict[str, Any]:
    """What the page may choose from."""
    return {
        "scores": list(SCORES),
        "heads": [task.title for task in TASKS],
        "dims": DIMS,
        "widths": WIDTHS,
        "most_words": MOST_WORDS,
    }


def attend_all(asked: Asked) -> dict[str, Any]:
    """The weights of every head, what switching heads off does, and every other score in a line.

    asked: queries, keys (sentences; no keys means the queries again); score; width; dim; spread; off: heads that are
    silent; causal, left, right, length: the mask in words; edits: cells [query, key, allowed] changed by hand.
    """
    queries = split("queries", asked.text("queries", MOST_TEXT))
    keys = split("keys", asked.text("keys", MOST_TEXT, "") or asked.text("queries", MOST_TEXT))
    dim, spread = 2 * (asked.whole("dim", *DIMS, 16) // 2), asked.number("spread", *SPREADS, otherwise=0.0)
    score, width = asked.choice("score", SCORES), asked.number("width", *WIDTHS, otherwise=2.0)
    off = sorted({_checked_head(head) for head in asked.items("off", len(TASKS))})
    allowed = mask_of(asked, len(queries), len(keys))
    heads = Heads(tokens(queries, dim, spread), tokens(keys, dim, spread), dim, width)
    mask = Mask.keep(allowed)
    right = [_right(number, queries, keys) for number in range(len(TASKS))]
    found = heads.attend(score, mask)
    weights, entropy = found.weights(), found.entropy()
    answers = [_answers(found.output[number], heads.value[0], keys) for number in range(len(TASKS))]
    judged = [_judge(answers[number], right[number], keys) for number in range(len(TASKS))]
    return {
        "queries": queries,
        "keys": keys,
        "allowed": allowed.tolist(),
        "heads": [
            {
                "title": task.title,
                "weights": weights[number].tolist(),
                "entropy": float(entropy[number].mean()),
                "on_right": _on_right(weights[number], right[number]),
                "answers": answers[number],
                "correct": judged[number],
            }
            for number, task in enumerate(TASKS)
        ],
        "effect": _effect(found.output, judged, off),
        "blind_rows": int(found.log_mass.isneginf().any(0).sum()),
        "every_score": [_line(name, heads, mask, right) for name in SCORES],
    }


def mask_of(asked: Asked, queries: int, keys: int) -> Tensor:
    """bool (queries, keys): the words of the mask, then the cells that were changed by hand."""
    align = None if queries == keys else "top_left"
    mask = Mask.keep(torch.ones(queries, keys, dtype=torch.bool))
    if asked.flag("causal"):
        mask = mask & Mask.causal(align)
    if asked.flag("window"):
        left, right = asked.whole("left", 0, MOST_WORDS, 2), asked.whole("right", 0, MOST_WORDS, 2)
        mask = mask & Mask.window(left, right, align)
    if asked.flag("lengths"):
        mask = mask & Mask.lengths(torch.tensor(asked.whole("length", 0, MOST_WORDS, keys)))
    allowed = mask.to_sdpa((), queries, keys).clone()
    for edit in asked.items("edits", queries * keys):
        query, key, may = _checked_edit(edit)
        if query < queries and key < keys:  # a cell of a longer sentence than this one
            allowed[query, key] = may
    return allowed


def _line(name: str, heads: Heads, mask: Mask, right: list[Tensor]) -> dict[str, Any]:
    """One score on the same queries and keys: entropy, and the share on the right keys of each head."""
    found = heads.attend(name, mask)
    weights = found.weights()
    shares = [_on_right(weights[number], right[number]) for number in range(len(TASKS))]
    return {"score": name, "entropy": float(found.entropy().mean()), "on_right": shares}


def _right(number: int, queries: list[str], keys: list[str]) -> Tensor:
    """bool (queries, keys): where the head of that number should look."""
    found = torch.zeros(len(queries), len(keys), dtype=torch.bool)
    for query, places in enumerate(right_keys(TASKS[number], queries, keys)):
        found[query, places] = True
    return found


def _on_right(weights: Tensor, right: Tensor) -> float | None:
    """The mean over queries that have a right key of the weight on right keys; None where no query has one."""
    counted = right.any(-1)
    return float((weights * right).sum(-1)[counted].mean()) if bool(counted.any()) else None


def _answers(output: Tensor, words: Tensor, keys: list[str]) -> list[str | None]:
    """For each query the word whose vector is nearest in direction to what the head brought; None of nothing."""
    likeness = torch.nn.functional.normalize(output, dim=-1) @ torch.nn.functional.normalize(words, dim=-1).mT
    return [keys[int(row.argmax())] if bool(row.any()) else None for row in likeness]


def _judge(answers: list[str | None], right: Tensor, keys: list[str]) -> list[bool | None]:
    """For each query whether the answer is right; None where there is no right answer."""
    judged: list[bool | None] = []
    for answer, places in zip(answers, right, strict=True):
        words = {keys[j].casefold() for j in places.nonzero().flatten().tolist()}
        judged.append((answer is not None and answer.casefold() in words) if words else None)
    return judged


def _effect(output: Tensor, judged: list[list[bool | None]], off: list[int]) -> dict[str, Any]:
    """What silent heads take away: of the joined output (eq. 14, heads side by side), and of the right answers.

    output: (heads, queries, dim).
    """
    squares = output.square().sum(-1)  # (heads, queries)
    whole = squares.sum(0)
    share = torch.where(whole > 0, squares[off].sum(0) / torch.where(whole > 0, whole, 1.0), 0.0).sqrt()
    counted = [(number, one) for number, row in enumerate(judged) for one in row if one is not None]
    return {
        "off": off,
        "change": share.tolist(),
        "mean_change": float(share.mean()),
        "asked": len(counted),
        "right_with_all": sum(one for _, one in counted),
        "right_now": sum(one for number, one in counted if number not in off),
    }


def _checked_head(head: object) -> int:
    if isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < len(TASKS):
        raise RegardError(
            "off",
            got=f"{head!r:.40}",
            needed=f"numbers of heads, from 0 to {len(TASKS) - 1}",
            repair="Use the switches of the heads.",
        )
    return head


def _checked_edit(edit: object) -> tuple[int, int, bool]:
    match edit:
        case [int(query), int(key), bool(may)] if query >= 0 <= key and not {type(query), type(key)} & {bool}:
            return query, key, may
    raise RegardError(
        "edits",
        got=f"{edit!r:.40}",
        needed="cells as [query, key, allowed]",
        repair="Clear the edits and click on the cells again.",
    )
