"""Read and validate looks.json, the record of a model's training."""

import json
import re
from pathlib import Path
from typing import Any

MAX_BYTES = 2**26
MAX_UPDATE = 10**9
MAX_LOSS = 1e9
LANGUAGE = re.compile(r"[a-z]{2,3}")


def read_looks(path: Path) -> dict[str, Any] | None:
    """Return the sentences and frames of a training; None if the file is missing, damaged or of another shape."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    sentences, frames = found.get("sentences"), found.get("frames")
    if not isinstance(sentences, list) or not all(map(_is_sentence, sentences)):
        return None
    if not isinstance(frames, list) or not all(_is_frame(frame, sentences) for frame in frames):
        return None
    return {"sentences": sentences, "frames": frames}


def _is_sentence(value: Any) -> bool:
    match value:
        case {"language": str(language), "text": str(text), "source": [*source], "target": [*target], **rest}:
            fits = LANGUAGE.fullmatch(language) is not None and not rest
            return fits and all(map(_is_text, [text, *source, *target]))
    return False


def _is_frame(value: Any, sentences: list[dict[str, Any]]) -> bool:
    match value:
        case {"update": update, "loss": loss, "share": share, "weights": [*weights], **rest}:
            numbers = type(update) is int and _is_number(update, MAX_UPDATE)
            numbers = numbers and (loss is None or _is_number(loss, MAX_LOSS))
            numbers = numbers and (share is None or _is_number(share, 1.0)) and not rest
            # A model without attention has no weights at all.
            shapes = not weights or len(weights) == len(sentences)
            return numbers and shapes and all(map(_is_matrix, weights, sentences))
    return False


def _is_matrix(value: object, sentence: dict[str, Any]) -> bool:
    """Whether it holds a weight for each target token (rows) and source token (columns)."""
    rows, columns = len(sentence["target"]), len(sentence["source"])
    return (
        isinstance(value, list)
        and len(value) == rows
        and all(isinstance(row, list) and len(row) == columns for row in value)
        and all(_is_number(weight, 1.0) for row in value for weight in row)
    )


def _is_number(value: object, most: float) -> bool:
    return type(value) in (int, float) and 0 <= value <= most  # type: ignore[operator]


def _is_text(value: object) -> bool:
    """Whether it is text without lone surrogates, which JSON can contain and UTF-8 cannot encode."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)
