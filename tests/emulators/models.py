"""The models that the emulator knows, its own prices and its own way to count tokens.

Nothing here is shared with the product: plain numbers, so that a mistake in the product's prices shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

CHARS_PER_TOKEN = 3.2
"""Claude's tokenizers give more tokens than tiktoken: about 4 characters a token for the same prose there."""


def count_tokens(text: str) -> int:
    return -(-len(text) * 10 // int(CHARS_PER_TOKEN * 10))


@dataclass(frozen=True)
class Model:
    """Prices are picodollars per token (0.10 USD per million tokens = 100,000): input, output, cache write 5m, 1h,
    cache read. `thinks` when thinking is on unless it is switched off."""

    prices: tuple[int, int, int, int, int]
    minimum: int
    window: int = 200_000
    step: int | None = None
    prices_above: tuple[int, int, int, int, int] | None = None
    thinks: bool = False

    def usd(self, usage: dict[str, Any]) -> Decimal:
        created = usage["cache_creation"]
        counts = (
            usage["input_tokens"],
            usage["output_tokens"],
            created["ephemeral_5m_input_tokens"],
            created["ephemeral_1h_input_tokens"],
            usage["cache_read_input_tokens"],
        )
        prompt = counts[0] + sum(counts[2:])
        above = self.step is not None and prompt > self.step
        prices = self.prices_above if above and self.prices_above else self.prices
        return Decimal(sum(count * price for count, price in zip(counts, prices, strict=True))).scaleb(-12)


MODELS = {
    "claude-haiku-5-5": Model(
        (100_000, 500_000, 125_000, 200_000, 10_000),
        minimum=512,
        window=1_000_000,
        step=100_000,
        prices_above=(500_000, 2_500_000, 625_000, 1_000_000, 50_000),
        thinks=True,
    ),
    "claude-haiku-4-5": Model((1_000_000, 5_000_000, 1_250_000, 2_000_000, 100_000), minimum=4096),
    "claude-haiku-4-5-20251001": Model((1_000_000, 5_000_000, 1_250_000, 2_000_000, 100_000), minimum=4096),
    "claude-sonnet-5-5": Model((2_000_000, 10_000_000, 2_500_000, 4_000_000, 100_000), minimum=512),
    "claude-opus-5-5": Model((4_000_000, 20_000_000, 5_000_000, 8_000_000, 200_000), minimum=512),
}
