"""What a response says, and what the chosen fault makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.emulators.faults import Fault
from tests.emulators.models import count_tokens
from tests.emulators.prompt import output_format, rest_digest, thinks, view_digest

_THOUGHT = "The user wants a short answer, so I had better think about it for a little while."


def digests(body: dict[str, Any]) -> str:
    """The default answer: names the first content block and the rest of them."""
    return f"Emulated answer about view {view_digest(body)} and rest {rest_digest(body)}."


def digest_object(body: dict[str, Any]) -> Any:
    """The default structured answer."""
    return {"view": view_digest(body), "rest": rest_digest(body)}


@dataclass
class Answer:
    """Blocks of type and text, `output_tokens` of all of them; `billed` unless refused before any output."""

    blocks: list[tuple[str, str]]
    stop_reason: str
    billed: bool = True

    @property
    def output_tokens(self) -> int:
        # An empty answer has output tokens too.
        return sum(count_tokens(text) for _, text in self.blocks) + 1


def write_answer(
    body: dict[str, Any],
    fault: Fault | None,
    answer: Callable[[dict[str, Any]], str],
    structured: Callable[[dict[str, Any]], Any],
) -> Answer:
    """The answer, cut at max_tokens (thinking counts)."""
    if body["max_tokens"] == 0:
        return Answer([], "max_tokens")
    said = json.dumps(structured(body), ensure_ascii=False) if output_format(body) else answer(body)
    blocks = [("thinking", _THOUGHT)] if thinks(body) else []
    blocks.append(("text", said))
    half = [("text", said[: len(said) // 2])]
    match fault.kind if fault else "":
        case "empty":
            return Answer([], "end_turn")
        case "thinking_first":
            blocks = [("thinking", _THOUGHT), ("text", said)]
        case "thinking_only":
            blocks = [("thinking", _THOUGHT)]
        case "refusal":
            late = fault is not None and fault.after_output
            return Answer(half if late else [], "refusal", billed=late)
        case "truncated":
            return Answer(half, "max_tokens")
        case "stop_reason":
            return Answer(blocks, fault.text if fault else "")
        case "text":
            blocks = [("text", fault.text if fault else "")]
    return _cut(blocks, body["max_tokens"])


def _cut(blocks: list[tuple[str, str]], max_tokens: int) -> Answer:
    kept: list[tuple[str, str]] = []
    left = max_tokens
    for kind, text in blocks:
        while count_tokens(text) > left:
            text = text[: len(text) - 1]
        kept.append((kind, text))
        left -= count_tokens(text)
        if left == 0 and (kind, text) != blocks[-1]:
            return Answer(kept, "max_tokens")
    return Answer(kept, "end_turn")
