"""Query sets: questions with the spans of documents that answer them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctx_pipeline.errors import QueryError

COVERED_SHARE, COVERED_MAX_CHARS, INSIDE_SHARE = 0.5, 1200, 0.9


@dataclass(frozen=True, slots=True)
class Span:
    """A passage that answers a query: characters `[start, end)` of a document's text."""

    doc: str
    """The document's path below its source, or its doc_id."""
    start: int
    end: int
    text: str = ""
    """What stood there when the query was written, all of it or a part; empty when the file does not tell."""

    def is_covered_by(self, start: int, end: int) -> bool:
        """Whether a chunk `[start, end)` of the same document answers for this span.

        It does when it holds at least half of min(span, 1,200) characters, or when 90 % of the chunk lie inside the
        span: a short chunk out of a long passage is an answer, too.
        """
        common = min(self.end, end) - max(self.start, start)
        needed = COVERED_SHARE * min(self.end - self.start, COVERED_MAX_CHARS)
        return common > 0 and (common >= needed or common >= INSIDE_SHARE * (end - start))


@dataclass(frozen=True, slots=True)
class Query:
    """A question and all the spans that answer it, in the order of the file."""

    qid: str
    text: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Boundary:
    """A given chunk: characters `[start, end)` of a document's text."""

    doc: str
    start: int
    end: int


def read_queries(path: Path) -> list[Query]:
    """The queries of a file of JSON lines `{"qid","query","doc","start","end"}`, one line per span.

    Raises QueryError naming the file, the line and what is wrong with it.
    """
    texts: dict[str, str] = {}
    spans: dict[str, list[Span]] = {}
    for number, values in _json_lines(path):
        try:
            if not isinstance(values["qid"], str | int):
                raise ValueError('"qid" is neither text nor a whole number')
            qid, text = str(values["qid"]), values["query"]
            given = values.get("text")
            span = Span(*_span(values), text=given if isinstance(given, str) else "")
            if not isinstance(text, str) or not text.strip():
                raise ValueError("the query is empty")
            (qid + text + span.doc).encode()  # JSON may hold half of a surrogate pair, which nothing can print
            if texts.setdefault(qid, text) != text:
                raise ValueError(f"qid {qid} has another query text than before")
        except (KeyError, TypeError, ValueError) as error:
            raise QueryError(_wrong_line(path, number, error, '"qid", "query", "doc", "start", "end"')) from None
        spans.setdefault(qid, []).append(span)
    if not spans:
        raise QueryError(f"{path} holds no query; a line is a JSON object with qid, query, doc, start and end")
    return [Query(qid, texts[qid], tuple(found)) for qid, found in spans.items()]


def read_boundaries(path: Path) -> dict[str, list[Boundary]]:
    """Given chunks of each document, in order, from JSON lines `{"doc","index","start","end"}`.

    Raises QueryError naming the file, the line and what is wrong with it.
    """
    found: dict[str, list[Boundary]] = {}
    seen: set[Boundary] = set()
    for number, values in _json_lines(path):
        try:
            boundary = Boundary(*_span(values))
        except (KeyError, TypeError, ValueError) as error:
            raise QueryError(_wrong_line(path, number, error, '"doc", "start", "end"')) from None
        if boundary in seen:
            raise QueryError(f"{path}, line {number}: the same chunk was given before; each counts once")
        seen.add(boundary)
        found.setdefault(boundary.doc, []).append(boundary)
    if not found:
        raise QueryError(f"{path} holds no chunk; a line is a JSON object with doc, index, start and end")
    return {doc: sorted(chunks, key=lambda chunk: (chunk.start, chunk.end)) for doc, chunks in found.items()}


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise QueryError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise QueryError(f"{path} cannot be read as UTF-8 text ({error})") from None
    # Not splitlines(): JSON strings may hold U+2028 and the like.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise QueryError(f"{path}, line {number}: not JSON ({error})") from None
        if not isinstance(values, dict):
            raise QueryError(f"{path}, line {number}: not a JSON object")
        yield number, values


def _span(values: dict[str, Any]) -> tuple[str, int, int]:
    doc, start, end = values["doc"], values["start"], values["end"]
    if not isinstance(doc, str) or not doc:
        raise ValueError('"doc" is not the path of a document')
    if type(start) is not int or type(end) is not int or not 0 <= start < end:
        raise ValueError(f'"start" {start!r} and "end" {end!r} are no span of characters')
    return doc, start, end


def _wrong_line(path: Path, number: int, error: Exception, needed: str) -> str:
    reason = f"no {error}" if isinstance(error, KeyError) else str(error)
    return f"{path}, line {number}: {reason}; a line needs {needed}"
