"""Settings of what writes contexts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from ctx_pipeline.claude.request import DEFAULT_MODEL
from ctx_pipeline.setting_types import Address, Folder, Pattern, Section, Share, Text

Method = Literal["outline", "claude", "openai", "summary", "auto", "none"]
CLAUDE_METHODS: frozenset[Method] = frozenset({"claude", "summary", "auto"})
"""Those that may ask Claude."""


def _terms(glossary: dict[str, str]) -> dict[str, str]:
    blank = [term for term, meaning in glossary.items() if not term.strip() or not meaning.strip()]
    if blank:
        raise ValueError(f'the term {blank[0]!r} or its definition is blank; write term = "definition"')
    return glossary


class ContextRule(Section):
    """What writes the contexts of documents whose path below their source matches `glob`, a pattern as in .gitignore.

    `method` is `outline` or `none`, or that of `contexts.method` to exempt documents from a rule further down.
    """

    glob: Pattern
    method: Literal["outline", "claude", "openai", "summary", "none"]


class ContextSettings(Section):
    """What writes contexts. Of the rules, the first whose glob matches a document decides; else `method` does.

    `window_tokens` (o200k_base) bounds what of a document is read for a context, `max_tokens` the answer. `max_usd`
    bounds what a refresh pays to Claude. `prices` names a file like the packaged prices.toml. `base_url` is the address
    of the OpenAI-compatible endpoint, or of a proxy before Claude, whose address is else ANTHROPIC_BASE_URL.
    Claude's key comes from ANTHROPIC_API_KEY, the endpoint's from CTX_CONTEXTS__API_KEY.
    """

    method: Method = "outline"
    model: Text | None = None
    base_url: Address | None = None
    api_key: SecretStr | None = None
    window_tokens: Annotated[int, Field(strict=True, ge=1_000, le=500_000)] = 8_000
    max_tokens: Annotated[int, Field(strict=True, ge=64, le=4_000)] = 300
    concurrency: Annotated[int, Field(strict=True, ge=1, le=512)] = 16
    chunks_per_call: Annotated[int, Field(strict=True, ge=1, le=50)] = 1
    reuse: Literal["exact", "chunk"] = "exact"
    reuse_max_drift: Share = 0.2
    prompt: Text | None = None
    glossary: Annotated[dict[str, str], AfterValidator(_terms)] = Field(default={})
    max_usd: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 5.0
    prices: Folder | None = None
    rule: tuple[ContextRule, ...] = ()

    @model_validator(mode="after")
    def _is_complete(self) -> ContextSettings:
        if self.method == "openai" and not (self.base_url and self.model):
            raise ValueError(
                "method openai needs base_url, such as http://localhost:11434/v1, and the name of a model there"
            )
        if self.chunks_per_call > 1 and self.method in ("openai", "summary"):
            raise ValueError(f"chunks_per_call above 1 needs method claude; with {self.method} leave it at 1")
        if self.api_key is not None and self.method != "openai":
            raise ValueError("api_key is for method openai; Claude's key comes from ANTHROPIC_API_KEY")
        for rule in self.rule:
            own = "claude" if self.method == "auto" else self.method
            if rule.method not in ("outline", "none", own):
                raise ValueError(
                    f"the rule for {rule.glob!r} names {rule.method}: use outline, none, or contexts.method ({own})"
                )
        return self

    @property
    def model_name(self) -> str:
        """The model, where none is set the default one of Claude."""
        return self.model or DEFAULT_MODEL
