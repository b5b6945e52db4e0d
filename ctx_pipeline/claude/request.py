"""One request to the Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

DEFAULT_MODEL = "claude-haiku-5-5"
TOKEN_MARGIN = 1.5
"""Claude's tokens against those of o200k_base, estimated high: about 1.3 has been reported for current models."""


@dataclass(frozen=True)
class Block:
    """A text block of the prompt; `cache_ttl` marks the end of a prefix to keep in the cache."""

    text: str
    cache_ttl: Literal["5m", "1h"] | None = None

    def param(self) -> dict[str, Any]:
        """The block as the API takes it."""
        block: dict[str, Any] = {"type": "text", "text": self.text}
        if self.cache_ttl is not None:
            block["cache_control"] = {"type": "ephemeral", "ttl": self.cache_ttl}
        return block


@dataclass(frozen=True)
class Request:
    """A single-turn request. Thinking is always off, so that `max_tokens` bounds the answer alone.

    The API refuses empty text, more than 4 marked blocks, and a "1h" mark after a "5m" one. With `json_schema` the
    answer is JSON of that schema. Not sent: `label`, what the cost belongs to, such as a doc_id; and `view`, the number
    of the first block, which several requests share. Limiters admit lower numbers first.
    """

    model: str
    max_tokens: int
    content: tuple[Block, ...]
    system: str = ""
    json_schema: Mapping[str, Any] | None = None
    label: str = ""
    view: int = 0

    def params(self) -> dict[str, Any]:
        """The arguments of `messages.create`, the same bytes for the same request."""
        params: dict[str, Any] = {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "thinking": {"type": "disabled"},
            "messages": [{"role": "user", "content": [block.param() for block in self.content]}],
        }
        if self.system:
            params["system"] = self.system
        if self.json_schema is not None:
            params["output_config"] = {"format": {"type": "json_schema", "schema": self.json_schema}}
        return params
