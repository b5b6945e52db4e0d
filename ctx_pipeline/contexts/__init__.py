"""Contexts, and the one place that chooses what writes them."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ctx_pipeline.context_settings import ContextSettings, Method
from ctx_pipeline.contexts.model import Contextualizer
from ctx_pipeline.contexts.outline import NoContextualizer, OutlineContextualizer
from ctx_pipeline.contexts.table_heads import TableHeadContextualizer
from ctx_pipeline.embedding.protocol import Embedder
from ctx_pipeline.errors import SettingsError
from ctx_pipeline.settings import CONTEXT_TOKENS

if TYPE_CHECKING:
    from ctx_pipeline.contexts.claude import ModelContextualizer
    from ctx_pipeline.contexts.requests import Requests
    from ctx_pipeline.index.tables import Store

CLAUDE_KEY = "ANTHROPIC_API_KEY"


def open_contextualizer(settings: ContextSettings, embedder: Embedder, store: Store, **timing: Any) -> Contextualizer:
    """The contextualizer that settings name; its contexts fit the room that chunks leave in the embedder's window.

    Paid contexts are kept in the memo of `store`. The budget of `max_usd` is that of the returned object. `timing` is
    the `retry`, `clock`, `sleep` and `jitter` of ClaudeClient. Connects nothing.

    Raises SettingsError for a model without prices, windows too large for it, and `auto`, which `resolve_method` turns
    into another method first.
    """
    outline = OutlineContextualizer(CONTEXT_TOKENS, embedder.count_tokens, embedder.tokenizer)
    others: dict[str, Contextualizer] = {"outline": outline, "none": NoContextualizer()}
    main = others.get(settings.method) or _model_contextualizer(settings, embedder, outline, store, timing)
    if settings.rule:
        from ctx_pipeline.contexts.rules import RuledContextualizer

        others.pop(settings.method, None)
        main = RuledContextualizer(main, others, settings.rule)
    elif settings.method == "none":
        return main
    return TableHeadContextualizer(main, CONTEXT_TOKENS, embedder.count_tokens)


def resolve_method(settings: ContextSettings, key_present: bool, stored: str | None) -> tuple[Method, str]:
    """What `auto` stands for, and what to tell about it; any other method stands for itself, with no message.

    `stored` is what an earlier run resolved it to: a key that comes or goes later changes nothing by itself.
    """
    if settings.method != "auto":
        return settings.method, ""
    change = 'set contexts.method to "claude" or "outline" to choose yourself'
    if stored == "claude" or stored == "outline":
        return ("claude" if stored == "claude" else "outline"), f"contexts.method auto: {stored}, as before; {change}"
    if key_present:
        return "claude", f"contexts.method auto: claude, because {CLAUDE_KEY} is set; {change}"
    return "outline", f"contexts.method auto: outline, because {CLAUDE_KEY} is not set; {change}"


def open_requests(settings: ContextSettings) -> Requests:
    """The requests that settings lead to, for writing contexts and for planning their cost.

    Raises SettingsError for a model without prices, and windows too large for it.
    """
    from ctx_pipeline.claude.pricing import Prices
    from ctx_pipeline.contexts.requests import Requests

    requests = Requests(
        model=settings.model_name,
        max_tokens=settings.max_tokens,
        window_tokens=settings.window_tokens,
        chunks_per_call=settings.chunks_per_call,
        prices=None if settings.method == "openai" else Prices.load(settings.prices).model(settings.model_name),
        instruction=settings.prompt,
        glossary=settings.glossary,
        summary=settings.method == "summary",
    )
    requests.check()
    return requests


def _model_contextualizer(
    settings: ContextSettings, embedder: Embedder, outline: OutlineContextualizer, store: Store, timing: dict[str, Any]
) -> ModelContextualizer:
    from ctx_pipeline.claude.adaptive import AdaptiveLimiter
    from ctx_pipeline.claude.budget import Budget
    from ctx_pipeline.claude.pricing import Prices
    from ctx_pipeline.contexts.claude import ModelContextualizer, Reuse
    from ctx_pipeline.contexts.memo import Memo
    from ctx_pipeline.contexts.service import ClaudeService, OpenAIService, Service
    from ctx_pipeline.contexts.writing import Room

    limiter = AdaptiveLimiter(
        settings.concurrency, **{name: timing[name] for name in ("clock", "sleep") if name in timing}
    )
    service: Service
    if settings.method == "openai":
        assert settings.base_url is not None
        service = OpenAIService(settings.base_url, settings.model_name, settings.api_key, limiter, settings.concurrency)
    elif settings.method == "auto":
        raise SettingsError("contexts.method auto was not resolved")
    else:
        prices = Prices.load(settings.prices)
        budget = Budget(Decimal(str(settings.max_usd)), prices, "contexts.max_usd")
        service = ClaudeService(prices, budget, limiter, base_url=settings.base_url, **timing)
    return ModelContextualizer(
        settings.method,
        open_requests(settings),
        service,
        outline,
        Room(CONTEXT_TOKENS, embedder.count_tokens),
        Memo(store),
        Reuse(settings.reuse == "chunk", settings.reuse_max_drift),
        None if settings.method == "openai" else CLAUDE_KEY,
    )
