"""A request body as the API reads it: what it refuses, and its blocks in the order of the cache key."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from tests.emulators.api_error import ApiError
from tests.emulators.models import MODELS, count_tokens

_REMOVED = ("temperature", "top_p", "top_k")
_KNOWN = {
    "model", "max_tokens", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "stream",
    "cache_control", "metadata", "service_tier", "stop_sequences",
}  # fmt: skip
_MESSAGE_OVERHEAD_TOKENS = 4
_BREAKPOINTS = 4


@dataclass(frozen=True)
class PromptBlock:
    """`prefix` is the digest of all that precedes and this block; `tokens` those of all up to here."""

    prefix: str
    tokens: int
    ttl: str | None


def sha(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def check(body: Any, *, counting: bool = False) -> None:
    """Raise the ApiError of a body that the API refuses."""
    if not isinstance(body, dict):
        raise ApiError(400, "The request body is not valid JSON")
    for name in _REMOVED:
        if name in body:
            raise ApiError(400, f"{name}: Extra inputs are not permitted")
    for name in sorted(body.keys() - _KNOWN):
        raise ApiError(400, f"{name}: Extra inputs are not permitted")
    if not isinstance(body.get("model"), str):
        raise ApiError(400, "model: Field required")
    if body["model"] not in MODELS:
        raise ApiError(404, f"model: {body['model']}")
    if not counting and not _is_count(body.get("max_tokens")):
        raise ApiError(400, "max_tokens: Field required, a whole number of at least 0")
    _check_messages(body.get("messages"))
    system = body.get("system", "")
    if not isinstance(system, str):
        _check_blocks("system", system)
    _check_marks(body)
    if body.get("max_tokens") == 0 and (
        body.get("stream") or thinks(body) or output_format(body) or body.get("tool_choice")
    ):
        raise ApiError(400, "max_tokens: 0 cannot be combined with stream, thinking, a format or a forced tool")
    window = MODELS[body["model"]].window
    if (tokens := prompt_tokens(body)) > window:
        raise ApiError(400, f"prompt is too long: {tokens} tokens > {window} maximum")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages: at least one message is required")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            raise ApiError(400, f"messages.{index}.role: Input should be 'user' or 'assistant'")
        if isinstance(message.get("content"), str):
            if not message["content"]:
                raise ApiError(400, f"messages.{index}: content must not be empty")
        else:
            _check_blocks(f"messages.{index}.content", message.get("content"))
    if messages[-1]["role"] == "assistant":
        raise ApiError(400, "This model does not support assistant message prefill. The conversation must end with a user message.")  # fmt: skip  # noqa: E501


def _check_blocks(where: str, blocks: Any) -> None:
    if not isinstance(blocks, list) or not blocks:
        raise ApiError(400, f"{where}: Field required, a list of content blocks")
    for index, block in enumerate(blocks):
        if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
            raise ApiError(400, f"{where}.{index}: Input should be a text block")
        if not block["text"].strip():
            raise ApiError(400, f"{where}.{index}: text content blocks must be non-empty")
        for name in sorted(block.keys() - {"type", "text", "cache_control"}):
            raise ApiError(400, f"{where}.{index}.{name}: Extra inputs are not permitted")


def _check_marks(body: dict[str, Any]) -> None:
    marks = [mark for _, _, mark in _parts(body) if mark is not None]
    if len(marks) > _BREAKPOINTS:
        raise ApiError(
            400, f"A maximum of {_BREAKPOINTS} blocks with cache_control may be provided. Found {len(marks)}."
        )
    lifetimes = []
    for mark in marks:
        if not isinstance(mark, dict) or mark.get("type") != "ephemeral" or mark.get("ttl", "5m") not in ("5m", "1h"):
            raise ApiError(400, "cache_control: Input should be of type 'ephemeral' with a ttl of '5m' or '1h'")
        lifetimes.append(mark.get("ttl", "5m"))
    if lifetimes != sorted(lifetimes):
        raise ApiError(400, "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block")


def output_format(body: dict[str, Any]) -> Any:
    return (body.get("output_config") or {}).get("format")


def thinks(body: dict[str, Any]) -> bool:
    """Whether the model thinks: switched on, or on by default and not switched off."""
    thinking = body.get("thinking")
    if thinking is None:
        return MODELS[body["model"]].thinks
    return bool(thinking.get("type") != "disabled")


def _parts(body: dict[str, Any]) -> list[tuple[str, dict[str, Any], Any]]:
    """Section, block without its mark, mark; in the order tools, system, messages."""
    found: list[tuple[str, dict[str, Any]]] = [("tools", tool) for tool in body.get("tools", [])]
    for section, content in [("system", body.get("system") or [])] + [
        (f"{index}:{message['role']}", message["content"]) for index, message in enumerate(body["messages"])
    ]:
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        found += [(section, block) for block in blocks]
    parts = [
        (section, {key: value for key, value in block.items() if key != "cache_control"}, block.get("cache_control"))
        for section, block in found
    ]
    if body.get("cache_control") is not None:
        section, block, _ = parts[-1]
        parts[-1] = (section, block, body["cache_control"])
    return parts


def blocks(body: dict[str, Any]) -> list[PromptBlock]:
    """The prompt's blocks; the digests also cover model, thinking, effort (whose default is high) and format."""
    effort = (body.get("output_config") or {}).get("effort") or "high"
    thinking = body.get("thinking") if thinks(body) and body.get("thinking") else thinks(body)
    prefix = sha(body["model"], thinking, effort, output_format(body))
    tokens = 0
    found = []
    for section, block, mark in _parts(body):
        prefix = sha(prefix, section, block)
        tokens += count_tokens(block["text"] if "text" in block else json.dumps(block)) + _MESSAGE_OVERHEAD_TOKENS
        found.append(PromptBlock(prefix, tokens, mark.get("ttl", "5m") if isinstance(mark, dict) else None))
    return found


def prompt_tokens(body: dict[str, Any]) -> int:
    return blocks(body)[-1].tokens


def texts(body: dict[str, Any]) -> list[str]:
    """The texts of the content blocks of all messages."""
    return [block["text"] for section, block, _ in _parts(body) if section not in ("tools", "system")]


def digest(text: str) -> str:
    """What answers and bill say of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def view_digest(body: dict[str, Any]) -> str:
    """Of the first content block."""
    return digest(texts(body)[0])


def rest_digest(body: dict[str, Any]) -> str:
    """Of the other content blocks."""
    return digest("\0".join(texts(body)[1:]))


def shape_digest(body: dict[str, Any]) -> str:
    """Of all that the requests of one view must share to share its cache entry: everything but the rest."""
    first = next(index for index, (section, _, _) in enumerate(_parts(body)) if section not in ("tools", "system"))
    return blocks(body)[first].prefix
