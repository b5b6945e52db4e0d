"""Contexts without a model: the document's title and the headings above the chunk."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

from ctx_pipeline.chunking.recursive import Chunk
from ctx_pipeline.contexts.model import Context, Progress, Written
from ctx_pipeline.documents.model import Document

VERSION = 1
SEPARATOR = " › "


class OutlineContextualizer:
    """Situates a chunk by its document's title and heading path; the keyword leg also gets the file's name."""

    method = "outline"

    def __init__(self, max_tokens: int, count_tokens: Callable[[Sequence[str]], list[int]], tokenizer: str) -> None:
        """Contexts are at most `max_tokens` long as `count_tokens` (identified by `tokenizer`) counts."""
        self.fingerprint = f"outline/{VERSION}/{max_tokens}/{tokenizer}"
        self.warnings: list[str] = []
        self._max_tokens = max_tokens
        self._count_tokens = count_tokens

    def can_take_up(self) -> frozenset[str]:
        """See Contextualizer. Nothing is ever pending."""
        return frozenset()

    def write(
        self,
        documents: Sequence[tuple[Document, Sequence[Chunk]]],
        progress: Callable[[Progress], None] = lambda progress: None,
    ) -> list[Written | Exception]:
        """See Contextualizer."""
        return [Written(contexts) for contexts in self.contexts(documents)]

    def contexts(self, documents: Sequence[tuple[Document, Sequence[Chunk]]]) -> list[list[Context]]:
        """The contexts of each document."""
        paths = {outline_path(document, chunk) for document, chunks in documents for chunk in chunks}
        fitted = self._fit(sorted(paths))
        return [
            [
                Context(fitted[outline_path(document, chunk)], keywords=_file_words(document), method=self.method)
                for chunk in chunks
            ]
            for document, chunks in documents
        ]

    def _fit(self, paths: list[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
        """The text of each path; one that is too long loses its middle first, then the end of what is left."""
        texts = [SEPARATOR.join(path) for path in paths]
        counts = self._count_tokens(texts)
        return {
            path: text if count <= self._max_tokens else self._shorten(path)
            for path, text, count in zip(paths, texts, counts, strict=True)
        }

    def _shorten(self, path: tuple[str, ...]) -> str:
        candidates = [SEPARATOR.join((path[0], "…", *path[-kept:])) for kept in range(len(path) - 2, 0, -1)]
        text = SEPARATOR.join((path[0], path[-1]) if len(path) > 1 else path)
        while text:
            candidates.append(text)
            text = _beginning(text, len(text) * 3 // 4)
        for candidate, count in zip(candidates, self._count_tokens(candidates), strict=True):
            if count <= self._max_tokens:
                return candidate
        return ""


class NoContextualizer:
    """Leaves every chunk as it is: the plain baseline."""

    method = "none"
    fingerprint = "none/1"

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def can_take_up(self) -> frozenset[str]:
        """See Contextualizer. Nothing is ever pending."""
        return frozenset()

    def write(
        self,
        documents: Sequence[tuple[Document, Sequence[Chunk]]],
        progress: Callable[[Progress], None] = lambda progress: None,
    ) -> list[Written | Exception]:
        """See Contextualizer."""
        return [Written([Context(text="", keywords="", method=self.method) for _ in chunks]) for _, chunks in documents]


def outline_path(document: Document, chunk: Chunk) -> tuple[str, ...]:
    """The title and the headings above the chunk; a first heading that only repeats the title is left out."""
    title, headings = document.parsed.title, chunk.heading_path
    return (title, *(headings[1:] if headings and headings[0].casefold() == title.casefold() else headings))


def _beginning(text: str, length: int) -> str:
    """At most `length` characters, up to a space where one is near: not every script has them."""
    space = text.rfind(" ", length // 2, length + 1)
    return text[: space if space > 0 else length].rstrip(f" {SEPARATOR}")


def _file_words(document: Document) -> str:
    """`planes/limites-de-uso.md` as words; the source's name tells nothing about one document."""
    path = PurePosixPath(document.doc_id.partition("/")[2])
    return " ".join(re.findall(r"[^\W_]+", str(path.with_suffix(""))))
