"""What tokens cost. Prices are dated data (`prices.toml`, or a file of one's own), in exact decimal arithmetic."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ctx_pipeline.claude.usage import Usage
from ctx_pipeline.errors import SettingsError

SETTINGS_KEY = "contexts.prices"
"""The setting that names a file of one's own prices."""

_MILLION = 1_000_000
_SNAPSHOT = re.compile(r"-(?:\d{8}|latest)$")

Usd = Annotated[Decimal, Field(ge=0, allow_inf_nan=False)]
Tokens = Annotated[int, Field(strict=True, ge=0)]


class Rates(BaseModel):
    """USD per million tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: Usd
    output: Usd
    cache_write_5m: Usd
    cache_write_1h: Usd
    cache_read: Usd

    def usd(self, usage: Usage) -> Decimal:
        """The cost of a usage at these rates."""
        return (
            usage.input * self.input
            + usage.cache_write_5m * self.cache_write_5m
            + usage.cache_write_1h * self.cache_write_1h
            + usage.cache_read * self.cache_read
            + usage.output * self.output
        ) / _MILLION


class ModelPrices(Rates):
    """The prices and limits of one model.

    A request whose prompt (cache reads included) exceeds `step_tokens` costs `above_step` for all of its tokens.
    Prefixes below `min_cacheable_tokens` are silently not cached.
    """

    batch_factor: Usd
    min_cacheable_tokens: Tokens
    context_window_tokens: Tokens
    step_tokens: Tokens | None = None
    above_step: Rates | None = None

    @model_validator(mode="after")
    def _step_has_prices(self) -> ModelPrices:
        if (self.step_tokens is None) != (self.above_step is None):
            raise ValueError("step_tokens and above_step belong together; one of them is missing")
        return self

    def rates(self, prompt_tokens: int) -> Rates:
        """The rates of a request with that many prompt tokens."""
        if self.step_tokens is not None and self.above_step is not None and prompt_tokens > self.step_tokens:
            return self.above_step
        return self


class Prices(BaseModel):
    """Prices by model, and when they were looked up."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    checked: str
    models: Mapping[str, ModelPrices]

    @classmethod
    def load(cls, path: Path | None = None) -> Prices:
        """The packaged prices, or those of a file of the same form.

        Raises SettingsError naming the file, the key and what is wrong.
        """
        place = path or resources.files("ctx_pipeline.claude") / "prices.toml"
        try:
            text = place.read_text(encoding="utf-8")
            values: dict[str, Any] = tomllib.loads(text, parse_float=Decimal)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise SettingsError(f"{SETTINGS_KEY}: {place} cannot be read as TOML ({error})") from None
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(map(str, first["loc"]))
            raise SettingsError(f"{SETTINGS_KEY}: {place}: {key}: {first['msg']}") from None

    def model(self, name: str) -> ModelPrices:
        """The prices of a model; `claude-haiku-4-5-20251001` and `-latest` are priced as `claude-haiku-4-5`.

        Raises SettingsError for a model without prices, naming those that have some.
        """
        found = self.models.get(name) or self.models.get(_SNAPSHOT.sub("", name))
        if found is None:
            raise SettingsError(
                f"no prices for the model {name!r}; known are {', '.join(sorted(self.models))}. "
                f"For another one, name a file with its prices in {SETTINGS_KEY}"
            )
        return found

    def cost(self, usage: Usage, model: str, batch: bool = False) -> Decimal:
        """USD of ONE request: the price step looks at its prompt. `batch` applies the model's batch factor.

        Raises SettingsError for a model without prices.
        """
        prices = self.model(model)
        usd = prices.rates(usage.total_input).usd(usage)
        return usd * prices.batch_factor if batch else usd
