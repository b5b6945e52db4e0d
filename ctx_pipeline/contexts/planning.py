"""What contexts by a model would cost, before any call: the requests that a refresh would send, counted and priced.

Requests and memo keys are those of the contextualizer itself (`Requests`, `Writing`); only texts are counted instead of
sent, by o200k_base with a margin. Nothing is asked of any service, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.chunking.tokens import count_tokens
from ctx_pipeline.claude.pricing import ModelPrices
from ctx_pipeline.context_settings import ContextSettings
from ctx_pipeline.contexts import open_requests
from ctx_pipeline.contexts.calls import JSON_TOKENS, Asked, groups, is_grouped, own_text, view_text
from ctx_pipeline.contexts.estimate import (
    BATCHES,
    CACHING,
    NO_CACHING,
    Estimate,
    Tokens,
    ViewSize,
    estimate,
    total,
    usd_range,
)
from ctx_pipeline.contexts.memo import Memo
from ctx_pipeline.contexts.model import NOTHING_EARLIER, Earlier
from ctx_pipeline.contexts.requests import Requests, most_claude_tokens
from ctx_pipeline.contexts.rules import Rules
from ctx_pipeline.contexts.writing import Item, Writing
from ctx_pipeline.documents.model import Document
from ctx_pipeline.errors import counted
from ctx_pipeline.index.tables import Store

SEVERAL = 10
"""Chunks of one call in the strategy that groups them."""
CURVE_TOKENS = (2_000, 4_000, 8_000, 16_000, 32_000)
ANSWER_TOKENS = Tokens(25, 150)
"""Of one context: 50 to 100 are asked for, which models keep to more or less, and o200k_base undercounts."""
PROMPT_TOKENS = 200_000
"""Below so many tokens of Claude's, Anthropic's post of 2024 advises to put the whole knowledge base in the prompt."""
_FRAME_TOKENS = 16
"""What the API may add to a prompt, for roles and the ends of blocks."""
_NAMED_SHARE = 0.8
_FEW_CHUNKS = 3

NO_CACHE, CACHED, GROUPED, BATCHED, AS_SET = "no caching", "caching", "10 a call", "batches", "as set"


@dataclass(slots=True)
class ContextPlan:
    """What would be asked, and what that costs."""

    method: str
    model: str
    is_priced: bool
    max_usd: Decimal | None
    """Ceiling of one refresh; None where no price is known."""
    window_tokens: int
    chunks_per_call: int
    documents: int = 0
    """Those that a refresh would see to, up to their contexts."""
    chunks: int = 0
    """Of those documents."""
    tokens: int = 0
    """Of those chunks, by o200k_base."""
    wanted: int = 0
    """Contexts that nobody has paid for yet."""
    paid: int = 0
    """Chunks whose context the memo has."""
    free: int = 0
    """Chunks that need no call: documents of one chunk, and those that a rule gives to another method."""
    asked_documents: int = 0
    """Documents with wanted contexts."""
    named: int = 0
    """Wanted contexts whose chunk stands below at least two headings, or in a document of few chunks."""
    strategies: dict[str, Estimate] = field(default_factory=dict)
    """By name; `as set` is always there."""
    curve: dict[int, Estimate] = field(default_factory=dict)
    """By window_tokens, as set otherwise; the last is the largest that the model takes at the lower price."""

    @property
    def chosen(self) -> Estimate:
        """What a refresh with these settings would cost."""
        return self.strategies[AS_SET]

    def line(self) -> str:
        """`about 0.1200-0.1800 USD for 300 contexts of 20 documents; max_usd 5`; empty when no call is needed."""
        if not self.wanted:
            return ""
        what = f"{counted(self.wanted, 'context')} of {counted(self.asked_documents, 'document')}"
        if not self.is_priced:
            return f"{counted(self.chosen.calls, 'call')} for {what}; contexts.method {self.method} has no known price"
        return f"about {usd_range(self.chosen)} USD for {what}; max_usd {self.max_usd:f}"

    def advice(self, corpus_tokens: int) -> list[str]:
        """What a person should know before paying. `corpus_tokens` (o200k_base) are those of all documents."""
        lines = []
        if not self.wanted:
            lines.append("every context that these settings ask for is paid for, or needs no call")
        most = most_claude_tokens(corpus_tokens, 0)
        if most < PROMPT_TOKENS:
            lines.append(
                f"the whole corpus has {corpus_tokens:,} tokens (at most about {most:,} of Claude's): below "
                f"{PROMPT_TOKENS:,} it fits in a prompt, and retrieval may not be needed"
            )
        elif corpus_tokens < PROMPT_TOKENS:
            lines.append(
                f"the whole corpus has {corpus_tokens:,} tokens (up to {most:,} of Claude's): it may just fit in a "
                f"prompt of {PROMPT_TOKENS:,}, and then retrieval is not needed"
            )
        if self.wanted and self.named >= _NAMED_SHARE * self.wanted:
            lines.append(
                f"`outline` may be enough, at no cost: {self.named:,} of {self.wanted:,} chunks stand below headings "
                f"that name them, or in documents of at most {_FEW_CHUNKS} chunks"
            )
        high = self.chosen.high.usd
        if self.max_usd is not None and self.wanted and high > self.max_usd:
            least, most_left = (
                max(0, int(self.wanted * (1 - self.max_usd / usd))) if usd else 0 for usd in (self.chosen.low.usd, high)
            )
            lines.append(
                f"contexts.max_usd {self.max_usd} may not be enough: about {least:,} to {most_left:,} of "
                f"{self.wanted:,} contexts would stay pending (budget), for later refreshes with as much each"
            )
        return lines


class ContextPlanner:
    """Plans contexts of documents that are added block by block.

    `compare` adds the other strategies and the curve over window_tokens. Reads the memo of `store`.
    Raises SettingsError for a model without prices, and windows too large for it.
    """

    def __init__(self, settings: ContextSettings, store: Store, *, compare: bool, renew: bool = False) -> None:
        self._settings, self._memo, self._renew = settings, Memo(store), renew
        self._rules = Rules(settings.rule)
        chosen = open_requests(settings)
        self._prices = chosen.prices
        self.plan = ContextPlan(
            method=settings.method,
            model=settings.model_name,
            is_priced=chosen.prices is not None,
            max_usd=Decimal(f"{settings.max_usd:g}") if chosen.prices is not None else None,
            window_tokens=chosen.window_tokens,
            chunks_per_call=chosen.chunks_per_call,
            strategies={AS_SET: Estimate()},
        )
        compare = compare and chosen.prices is not None
        self._ways = {AS_SET: (chosen.chunks_per_call, CACHING)}
        if compare:
            alone = {NO_CACHE: (1, NO_CACHING), CACHED: (1, CACHING)}
            several = {} if chosen.summary else {GROUPED: (SEVERAL, CACHING)}
            self._ways = {**alone, **several, BATCHED: (1, BATCHES), **self._ways}
            self.plan.strategies = dict.fromkeys(self._ways, Estimate())
        windows = {chosen.window_tokens}
        if compare and not chosen.summary:
            most = chosen.most_tokens()
            windows |= {*(tokens for tokens in CURVE_TOKENS if tokens < most), most}
            self.plan.curve = dict.fromkeys(sorted(windows), Estimate())
        self._windows = {tokens: replace(chosen, window_tokens=tokens) for tokens in windows}
        self._seen: dict[int, set[str]] = {tokens: set() for tokens in windows}

    def add(
        self,
        documents: Sequence[tuple[Document, Sequence[Chunk]]],
        earlier: Mapping[str, Earlier] = NOTHING_EARLIER,
    ) -> None:
        """Count some documents, each once; `earlier` is what an earlier version of this program made of them."""
        plan = self.plan
        plan.documents += len(documents)
        plan.chunks += sum(len(chunks) for _, chunks in documents)
        plan.tokens += sum(chunk.tokens for _, chunks in documents for chunk in chunks)
        paying = [
            (document, chunks)
            for document, chunks in documents
            if self._rules.method(document.doc_id) in ("", self._settings.method)
        ]
        counter = _Counter()
        for tokens, requests in self._windows.items():
            items = [Item(document, chunks, (), requests.places(document, chunks)) for document, chunks in paying]
            is_chosen = tokens == plan.window_tokens
            # With other windows, everything would be asked for again.
            paid = self._paid(items, requests, earlier if is_chosen else NOTHING_EARLIER)
            seen = self._seen[tokens]
            if is_chosen:
                plan.free += sum(len(chunks) for _, chunks in documents) - sum(len(item.places) for item in items)
                self._count(items, paid, seen)
            found: dict[int, list[ViewSize]] = {}
            for name, (chunks_per_call, way) in self._ways.items():
                if name != AS_SET and not is_chosen:
                    continue
                if chunks_per_call not in found:
                    asking = replace(requests, chunks_per_call=chunks_per_call)
                    asked = asking.asked(((item.document, item.places) for item in items), paid | seen)
                    found[chunks_per_call] = [_size(view, asking, counter) for view in asked]
                cost = total([estimate(size, self._prices or _NO_PRICES, way) for size in found[chunks_per_call]])
                if is_chosen:
                    plan.strategies[name] += cost
                if name == AS_SET and tokens in plan.curve:
                    plan.curve[tokens] += cost
            seen.update(place.key for item in items for place in item.places)

    def _paid(self, items: Sequence[Item], requests: Requests, earlier: Mapping[str, Earlier]) -> set[str]:
        """Keys of contexts that the memo has, that `reuse` takes over, or that an upgrade leaves as they are."""
        writing = Writing(items, self._memo, self._settings.method, lambda progress: None, renew=self._renew)
        max_drift = self._settings.reuse_max_drift if self._settings.reuse == "chunk" else None
        if earlier and not self._renew:
            writing.keep_paid(earlier, requests.shapes, max_drift, store=False)
        if max_drift is not None:
            writing.take_over(max_drift)
        return writing.closed

    def _count(self, items: Sequence[Item], paid: set[str], seen: set[str]) -> None:
        plan, met = self.plan, set(seen)
        for item in items:
            before = plan.wanted
            for at, place in enumerate(item.places):
                if place.key in paid:
                    plan.paid += 1
                elif place.key not in met:
                    met.add(place.key)
                    plan.wanted += 1
                    plan.named += len(item.chunks[at].heading_path) > 1 or len(item.chunks) <= _FEW_CHUNKS
            plan.asked_documents += plan.wanted > before


_FREE = Decimal(0)
_NO_PRICES = ModelPrices(
    input=_FREE,
    output=_FREE,
    cache_write_5m=_FREE,
    cache_write_1h=_FREE,
    cache_read=_FREE,
    batch_factor=_FREE,
    min_cacheable_tokens=0,
    context_window_tokens=0,
)


class _Counter:
    """Counts each text once."""

    def __init__(self) -> None:
        self._known: dict[str, Tokens] = {}

    def __call__(self, text: str) -> Tokens:
        if text not in self._known:
            low = count_tokens([text])[0]
            self._known[text] = Tokens(low, most_claude_tokens(low, len(text)))
        return self._known[text]


def _size(asked: Asked, requests: Requests, count: _Counter) -> ViewSize:
    """The size of the calls about a view."""
    grouped = is_grouped(asked, requests.chunks_per_call)
    shared = count(asked.prompt.system) + count(view_text(asked, grouped))
    calls, rest, output, largest = 0, Tokens(), Tokens(), Tokens()
    for group in groups(asked.wanted, requests.chunks_per_call):
        own = count(own_text(asked.prompt, group, grouped)) + Tokens(0, _FRAME_TOKENS)
        calls, rest, output = calls + 1, rest + own, output + _answers(len(group), requests.max_tokens, grouped)
        largest = max(largest, shared + own, key=lambda tokens: tokens.high)
    return ViewSize(calls, shared, rest, output, largest, asked.marked)


def _answers(count: int, max_tokens: int, grouped: bool) -> Tokens:
    around = JSON_TOKENS if grouped else 0
    low, high = (min(tokens, max_tokens) for tokens in (ANSWER_TOKENS.low, ANSWER_TOKENS.high))
    return Tokens(count * (low + around // 2), count * (high + around))
