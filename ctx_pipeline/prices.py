"""What embedding and reranking services charge, from `prices.toml`."""

from __future__ import annotations

import importlib.resources
import tomllib
from functools import cache
from typing import Any


def tokens_usd(model: str, tokens: int | None) -> float | None:
    """USD of so many tokens; None for a model without a known price, or when the tokens are not known."""
    price = _prices()["tokens"].get(model)
    return None if price is None or tokens is None else tokens * price / 1e6


def search_units_usd(model: str, units: float | None) -> float | None:
    """USD of so many search units; None for a model without a known price, or when the units are not known."""
    price = _prices()["search_units"].get(model)
    return None if price is None or units is None else units * price / 1e3


@cache
def _prices() -> dict[str, Any]:
    return tomllib.loads((importlib.resources.files("ctx_pipeline") / "prices.toml").read_text("utf-8"))
