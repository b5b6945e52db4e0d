"""What has arrived of one streamed response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ctx_pipeline.claude.usage import Usage

_USAGE_FIELDS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


@dataclass
class Received:
    """Filled event by event. It is `started` from `message_start` on (a cache entry that the request writes can be
    read from then), and `complete` after `message_stop`. `blocks` maps an index to the block's type and text.
    """

    started: bool = False
    complete: bool = False
    model: str = ""
    stop_reason: str | None = None
    request_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    blocks: dict[int, tuple[str, str]] = field(default_factory=dict)
    _usage: dict[str, Any] = field(default_factory=dict)

    def open(self, headers: Mapping[str, str]) -> None:
        """The HTTP response has begun; no event yet."""
        self.headers = headers
        self.request_id = headers.get("request-id")

    def take(self, event: Any) -> None:
        """Take up one event of the SDK's stream. Raises ValueError for one without the fields of its type."""
        try:
            self._take(event)
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"malformed {getattr(event, 'type', 'event')!s}: {error}") from None

    def _take(self, event: Any) -> None:
        match event.type:
            case "message_start":
                self.model = event.message.model
                self._usage = event.message.usage.model_dump()
                self.started = True
            case "content_block_start":
                self.blocks[event.index] = (event.content_block.type, getattr(event.content_block, "text", ""))
            case "content_block_delta" if event.delta.type == "text_delta":
                kind, text = self.blocks.get(event.index, ("text", ""))
                self.blocks[event.index] = (kind, text + event.delta.text)
            case "message_delta":
                self.stop_reason = event.delta.stop_reason
                # Cumulative; a field that is null here keeps its value of `message_start`.
                changed = {name: getattr(event.usage, name, None) for name in _USAGE_FIELDS}
                self._usage.update({name: value for name, value in changed.items() if value is not None})
            case "message_stop":
                self.complete = True

    @property
    def text(self) -> str | None:
        """The text of all text blocks; None when there is no such block (a thinking block is not one)."""
        texts = [text for kind, text in self.blocks.values() if kind == "text"]
        return "".join(texts) if texts else None

    @property
    def usage(self) -> Usage:
        """Tokens reported so far."""
        return Usage.from_response(self._usage)

    @property
    def billed(self) -> bool:
        """Whether this costs money: not a refusal before any output, although `usage` shows tokens for it.

        The documentation says so; it does not say what a stream that broke costs, so what was reported is counted.
        """
        has_output = any(text or kind != "text" for kind, text in self.blocks.values())
        return self.started and (has_output or self.stop_reason != "refusal")
