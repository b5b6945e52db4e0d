"""Contexts without a model: title, headings and enclosing definitions; for the keyword leg also what a file defines.

The text follows from the chunk's own place and the document's title, so that an edit elsewhere in the document leaves
the embeddings of its other chunks alone. What is said of the whole document goes into the keywords, which cost none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.contexts.definitions import Definitions
from ctx_pipeline.contexts.model import NOTHING_EARLIER, Context, Earlier, Progress, Written
from ctx_pipeline.documents.blocks import TITLE_CHARS
from ctx_pipeline.documents.model import Document
from ctx_pipeline.documents.titles import title_from_path

VERSION = 3
SEPARATOR = " › "

DEFINED_NAMES, NAMES_CHARACTERS = 40, 1_000
"""Of a document, in order, and as many of a chunk: more of them make every chunk of a long file alike."""
IMPORTS_CHARACTERS, IMPORTS_WITHIN_CHARACTERS = 300, 5_000

_IMPORT = re.compile(r"^[ \t]*(?:use|import|from|#[ \t]*include|require|using)\b[^\n]{1,200}", re.MULTILINE)
_LETTERS = re.compile(r"[^\W\d_]{2,}|[\u3400-\u9fff]")
_HEXADECIMAL = re.compile(r"(?=.*\d)[0-9a-f]{8,}", re.IGNORECASE)
_GENERIC_NAMES = """
archivo capitulo capítulo chapter contenido contenidos content contents copia copy default doc docs document documento
documents documentos draft dsc file files final image images img index main misc nd new nota notas note notes nuevo
nueva page pages pagina página part parte rd readme scan seccion sección section st temp text texto th tmp txt untitled
"""
_EMPTY_NAMES = frozenset(_GENERIC_NAMES.split())


class OutlineContextualizer:
    """Situates a chunk by its document's title, the headings above it and the definitions around it."""

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
        earlier: Mapping[str, Earlier] = NOTHING_EARLIER,
        *,
        renew: bool = False,
    ) -> list[Written | Exception]:
        """See Contextualizer."""
        return [Written(contexts) for contexts in self.contexts(documents)]

    def contexts(self, documents: Sequence[tuple[Document, Sequence[Chunk]]]) -> list[list[Context]]:
        """The contexts of each document."""
        outlines = [_Outline(document, chunks) for document, chunks in documents]
        paths = [
            [outline.path(chunk) for chunk in chunks] for outline, (_, chunks) in zip(outlines, documents, strict=True)
        ]
        fitted = self._fit(sorted({path for of_document in paths for path in of_document}))
        return [
            [
                Context(text=fitted[path], keywords=outline.keywords(chunk), method=self.method)
                for path, chunk in zip(of_document, chunks, strict=True)
            ]
            for outline, of_document, (_, chunks) in zip(outlines, paths, documents, strict=True)
        ]

    def _fit(self, paths: list[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
        """The text of each path; one that is too long loses its middle first, then the end of what is left."""
        texts = [SEPARATOR.join(path) for path in paths]
        counts = self._count_tokens(texts)
        return {
            path: text if count <= self._max_tokens else shortened_path(path, self._max_tokens, self._count_tokens)
            for path, text, count in zip(paths, texts, counts, strict=True)
        }


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
        earlier: Mapping[str, Earlier] = NOTHING_EARLIER,
        *,
        renew: bool = False,
    ) -> list[Written | Exception]:
        """See Contextualizer."""
        return [Written([Context(text="", keywords="", method=self.method) for _ in chunks]) for _, chunks in documents]


class _Outline:
    """What the contexts of one document's chunks share, read once."""

    def __init__(self, document: Document, chunks: Sequence[Chunk]) -> None:
        parsed = document.parsed
        # In Markdown and reStructuredText the headings are the outline, and code is an example.
        text = "" if parsed.media_type in ("text/markdown", "text/x-rst") else parsed.text
        self._path = document.doc_id.partition("/")[2]
        self._title = parsed.title if _tells(parsed.title, self._path) else ""
        self._definitions = Definitions(text)
        self._document_words = [
            " ".join(re.findall(r"[^\W_]+", str(PurePosixPath(self._path).with_suffix("")))),
            _names(definition.name for definition in self._definitions.all),
            " ".join(" ".join(_IMPORT.findall(text[:IMPORTS_WITHIN_CHARACTERS])).split())[:IMPORTS_CHARACTERS],
        ]

    def path(self, chunk: Chunk) -> tuple[str, ...]:
        """Title, headings and enclosing definitions; a first heading that only repeats the title is left out."""
        headings = chunk.heading_path
        repeated = bool(headings) and self._is_title(headings[0])
        if headings:  # of source code, chunking by structure names the definitions already
            return tuple(part for part in (self._title, *headings[repeated:]) if part)
        first = chunk.start + len(chunk.text) - len(chunk.text.lstrip())
        enclosing = [definition.name for definition in self._definitions.enclosing(first)]
        return tuple(part for part in (self._title, *enclosing) if part)

    def _is_title(self, heading: str) -> bool:
        return heading[:TITLE_CHARS].rstrip().casefold() == self._title.casefold()

    def keywords(self, chunk: Chunk) -> str:
        """Words of the path, names of the document, and of the chunk: a definition counts above its uses."""
        own = _names(definition.name for definition in self._definitions.between(chunk.start, chunk.end))
        return "\n".join(words for words in (*self._document_words, own) if words)


def _names(names: Iterable[str]) -> str:
    return " ".join(list(dict.fromkeys(names))[:DEFINED_NAMES])[:NAMES_CHARACTERS]


def _tells(title: str, path: str) -> bool:
    """Whether a title is worth its place before every chunk: one made of a file's name may be no more than `doc 12`.

    That is decided from the name alone, so that the rows of a document never depend on others.
    """
    if title != title_from_path(path):
        return True
    if _HEXADECIMAL.fullmatch(re.sub(r"[\W_]", "", title)):  # an identifier that a program gave
        return False
    return any(letters.casefold() not in _EMPTY_NAMES for letters in _LETTERS.findall(title))


def shortened_path(path: Sequence[str], max_tokens: int, count_tokens: Callable[[Sequence[str]], list[int]]) -> str:
    """The text of a path without its middle, then without the end of what is left, as far as `max_tokens` demand."""
    candidates = [SEPARATOR.join((path[0], "…", *path[-kept:])) for kept in range(len(path) - 2, 0, -1)]
    text = SEPARATOR.join((path[0], path[-1]) if len(path) > 1 else path)
    while text:
        candidates.append(text)
        text = _beginning(text, len(text) * 3 // 4)
    for candidate, count in zip(candidates, count_tokens(candidates), strict=True):
        if count <= max_tokens:
            return candidate
    return ""


def _beginning(text: str, length: int) -> str:
    """At most `length` characters, up to a space where one is near: not every script has them."""
    space = text.rfind(" ", length // 2, length + 1)
    return text[: space if space > 0 else length].rstrip(f" {SEPARATOR}")
