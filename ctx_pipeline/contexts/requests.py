"""Which request would write the context of each chunk: the same for writing contexts and for planning their cost."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.chunking.tokens import count_tokens
from ctx_pipeline.claude.pricing import ModelPrices
from ctx_pipeline.claude.request import TOKEN_MARGIN
from ctx_pipeline.contexts.calls import Asked, Wanted, groups
from ctx_pipeline.contexts.prompt import WORDED_LANGUAGES, Prompt, digest, memo_key, summary_key
from ctx_pipeline.contexts.view import VERSION, View, beginning, document_views
from ctx_pipeline.documents.model import Document
from ctx_pipeline.errors import SettingsError

_CHARS_PER_TOKEN = 3.0
"""At least, of text that o200k_base packs more tightly than prose, such as runs of spaces."""
_AROUND_TOKENS = 3_000
"""Wording, title, headings, delimiters, and the chunk a second time, in o200k_base."""


def most_claude_tokens(tokens: int, chars: int) -> int:
    """Claude's tokens, estimated high, of a text of so many tokens (o200k_base) and characters."""
    return math.ceil(max(TOKEN_MARGIN * tokens, chars / _CHARS_PER_TOKEN))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a chunk's context comes from."""

    key: str
    shape: str
    """Digest of all that affects the answer and is the same for every document of the language."""
    model: str
    view: View
    prompt: Prompt
    chunk: Chunk | None
    """None for a summary of the view."""
    number: int


@dataclass(frozen=True)
class Requests:
    """The requests of some settings. `prices` are those of the model; None for a service without a prompt cache."""

    model: str
    max_tokens: int
    window_tokens: int
    chunks_per_call: int
    prices: ModelPrices | None
    instruction: str | None = None
    glossary: Mapping[str, str] = field(default_factory=dict)
    summary: bool = False

    def check(self) -> None:
        """Raises SettingsError when a request could exceed the size from which the model costs more, or takes none."""
        most = self.most_tokens()
        if self.window_tokens > most:
            raise SettingsError(
                f"contexts.window_tokens {self.window_tokens} is too large for {self.model}: a request could exceed "
                f"the size from which it costs more, or its context window; use at most {most}"
            )

    @property
    def identity(self) -> str:
        """Digest of all that affects contexts and is the same for every document."""
        parts = (VERSION, self._model, self.max_tokens, self.window_tokens, self.prompt("").identity, self.summary)
        return digest(*parts)

    @property
    def _model(self) -> str:
        return self.model if self.prices is not None else f"openai:{self.model}"

    @property
    def shapes(self) -> frozenset[str]:
        """The `Place.shape`s that these settings have led to, whatever the language of the document."""
        return frozenset(self._shape(self.prompt(language)) for language in (*WORDED_LANGUAGES, ""))

    def _shape(self, prompt: Prompt) -> str:
        return digest(self._model, self.max_tokens, prompt.identity)

    def prompt(self, language: str) -> Prompt:
        """The prompt for documents in a language."""
        return Prompt(language, self.instruction, self.glossary)

    def places(self, document: Document, chunks: Sequence[Chunk]) -> list[Place]:
        """One for each chunk; none for a document of a single chunk, which needs no call."""
        if len(chunks) < 2:
            return []
        prompt = self.prompt(document.parsed.language)
        shape = self._shape(prompt)
        if self.summary:
            view = beginning(document.parsed, chunks, self.most_tokens())
            return [Place(summary_key(shape, view), shape, self._model, view, prompt, None, 0)] * len(chunks)
        return [
            Place(memo_key(shape, view, chunk), shape, self._model, view, prompt, chunk, number)
            for view in document_views(document.parsed, chunks, self.window_tokens)
            for number, chunk in enumerate(view.chunks, start=1)
        ]

    def asked(self, documents: Iterable[tuple[Document, Sequence[Place]]], known: Collection[str]) -> list[Asked]:
        """What has to be asked, view by view: each key once, and none of the known ones."""
        seen = set(known)
        found: list[Asked] = []
        for document, places in documents:
            of_view: dict[int, list[Place]] = {}
            for place in places:
                if place.key not in seen:
                    seen.add(place.key)
                    of_view.setdefault(place.view.first, []).append(place)
            for own in of_view.values():
                wanted = tuple(Wanted(p.key, document.doc_id, p.chunk, p.number) for p in own)
                found.append(Asked(own[0].view, own[0].prompt, wanted, self._is_marked(own[0], wanted)))
        return found

    def _is_marked(self, place: Place, wanted: Sequence[Wanted]) -> bool:
        """A mark on what is too short after all is ignored by the API; a missing one costs the price of the view."""
        if self.prices is None or len(list(groups(wanted, self.chunks_per_call))) < 2:
            return False
        chars = len(place.prompt.system) + len(place.view.text)
        tokens = place.view.tokens + count_tokens([place.prompt.system])[0]
        return most_claude_tokens(tokens, chars) >= self.prices.min_cacheable_tokens

    def most_tokens(self) -> int:
        """Tokens (o200k_base) of the largest view whose requests cost the lower price, estimated low."""
        if self.prices is None:
            return self.window_tokens
        # Bytes, because counting tokens loads a vocabulary, and every command opens a contextualizer.
        own = [*self.glossary, *self.glossary.values(), self.instruction or ""]
        around = sum(len(text.encode()) for text in own) + _AROUND_TOKENS
        most = min(self.prices.step_tokens or math.inf, self.prices.context_window_tokens)
        return int(most / TOKEN_MARGIN) - around
