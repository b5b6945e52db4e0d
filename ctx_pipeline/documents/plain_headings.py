"""Headings of plain text, told by their shape and by what stands around them.

Conservative, because a wrong heading is worse than none: it would stand before every chunk up to the next. A line is a
heading when it is numbered, in capitals, named (`Item 7.`, `Artículo 5`), underlined, or short without a full stop, and
when text of its own follows. In a row of such lines (contents, lists, addresses, verse) none is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ctx_pipeline.documents.blocks import TITLE_CHARS
from ctx_pipeline.documents.line_shapes import (
    Candidate,
    Number,
    candidate_in,
    indent_of,
    is_capital,
    is_page_number,
    is_prose,
    is_title_like,
    number_of,
)

_MAX_LEVEL = 6
_TITLE_RANK = 5
_REPEATED = 3
"""A short line that stands in as many places is a running head or a refrain."""
_REPEATED_CHARS = 160
_MOST_SHORT_SHARE, _FEWEST_SHORT = 1 / 3, 6
_FEWEST_LETTERS = 12
_CENTERED_COLUMNS, _MOST_COLUMNS = 12, 1_000
_SENTENCE_ENDS = (".", "!", "?", ":", ";", "”", '"', ")", "…", "。")


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Lines between blank ones, by number; the end is exclusive."""

    first: int
    last: int
    begins_page: bool = False
    """It is the first after a form feed."""
    is_record: bool = False


@dataclass(frozen=True, slots=True)
class PlainHeading:
    """A heading at the beginning of a paragraph."""

    level: int
    title: str
    lines: int


def find_headings(lines: Sequence[str], paragraphs: Sequence[Paragraph]) -> dict[int, PlainHeading]:
    """The headings, by the number of their first line. `lines` are as they stand in the text."""
    return _Headings(lines, paragraphs).found()


class _Headings:
    """The paragraphs of a text, each with what it could begin with."""

    def __init__(self, lines: Sequence[str], paragraphs: Sequence[Paragraph]) -> None:
        self._lines, self._paragraphs = lines, paragraphs
        self._running = self._running_heads()
        repeated = self._repeated()
        self._candidates: list[Candidate | None] = [None] * len(paragraphs)
        for number, paragraph in enumerate(paragraphs):
            first = lines[paragraph.first].strip()
            if paragraph.is_record or first in self._running:
                continue
            candidate = candidate_in(lines, paragraph.first, paragraph.last, begins_page=self._begins_page_with(number))
            if candidate and candidate.style in ("capitals", "short") and _shape(first) in repeated:
                candidate = None
            self._candidates[number] = candidate
        self._body_indent = self._usual_indent()
        self._number()

    def found(self) -> dict[int, PlainHeading]:
        """See find_headings."""
        kept = dict(self._with_text())
        short = [number for number, candidate in kept.items() if candidate.style == "short"]
        if len(short) >= _FEWEST_SHORT and len(short) > _MOST_SHORT_SHARE * len(self._paragraphs):
            for number in short:
                del kept[number]
        levels = {rank: level for level, rank in enumerate(sorted({c.rank for c in kept.values()}), start=1)}
        return {
            self._paragraphs[number].first: PlainHeading(
                min(levels[candidate.rank], _MAX_LEVEL), candidate.title[:TITLE_CHARS].rstrip(), candidate.lines
            )
            for number, candidate in kept.items()
        }

    def _number(self) -> None:
        """A numbered candidate beside which the next number is one too is sure; one where that is a sentence is none.

        Such a sentence begins a part of its own, which would stand under the heading of another.
        """
        last_of: dict[Number, int] = {}
        first_of: dict[Number, int] = {}
        last_sentence: dict[Number, int] = {}
        for position, (paragraph, candidate) in enumerate(zip(self._paragraphs, self._candidates, strict=True)):
            number = candidate.number if candidate else number_of(self._lines[paragraph.first])
            if number and candidate:
                last_of[number] = position
                first_of.setdefault(number, position)
            elif number and not paragraph.is_record and not is_title_like(self._own(position)):
                last_sentence[number] = position
        has_parts = any(c and c.needs_parts and c.number and _part(c.number) in first_of for c in self._candidates)
        for position, candidate in enumerate(self._candidates):
            if candidate and candidate.number:
                kind, (*above, last) = candidate.number
                next_number: Number = (kind, (*above, last + 1))
                has_next = last_of.get(next_number, -1) > position
                follows = first_of.get((kind, (*above, last - 1)), position) < position
                has_part = last_of.get(_part(candidate.number), -1) > position
                is_sentence = not has_next and last_sentence.get(next_number, -1) > position
                if is_sentence or (candidate.needs_parts and not has_parts) or self._is_set_in(position):
                    self._candidates[position] = None
                elif has_next or follows or has_part:
                    self._candidates[position] = replace(candidate, is_strong=True)

    def _with_text(self) -> Iterator[tuple[int, Candidate]]:
        """Positions of the candidates that text of their own follows, and that are no entries of a list."""
        position = 0
        while position < len(self._candidates):
            candidate = self._candidates[position]
            end = position + 1
            if candidate:
                while not self._has_text(end - 1) and self._is_like(candidate, end):
                    end += 1
                is_list = end - position > 2 or (end - position == 2 and not candidate.is_strong)
                first = end - 1 if is_list else position
                for number in range(first, end):
                    own = self._candidates[number]
                    if (
                        own
                        and not (is_list and own.style not in ("capitals", "page"))
                        and self._is_followed(number, own)
                    ):
                        yield number, self._as_title(number, own)
            position = end

    def _as_title(self, number: int, candidate: Candidate) -> Candidate:
        """The first line of a text, above a subtitle, a date or another heading, is above all of it."""
        is_title = not number and candidate.style == "capitals" and not self._is_prose(number + 1)
        return replace(candidate, rank=_TITLE_RANK) if is_title and not self._has_text(number) else candidate

    def _is_set_in(self, number: int) -> bool:
        """Whether a numbered line is set deeper than the text is, as lists are."""
        line = self._lines[self._paragraphs[number].first]
        return indent_of(line) > self._body_indent and not is_capital(line)

    def _usual_indent(self) -> int:
        """The indent of most prose; without prose, more than any."""
        indents = Counter(
            min(map(indent_of, self._own(number)[:2]))
            for number in range(len(self._paragraphs))
            if self._is_prose(number)
        )
        return indents.most_common(1)[0][0] if indents else _MOST_COLUMNS

    def _own(self, number: int) -> Sequence[str]:
        paragraph = self._paragraphs[number]
        return self._lines[paragraph.first : paragraph.last]

    def _is_like(self, candidate: Candidate, number: int) -> bool:
        other = self._candidates[number] if number < len(self._candidates) else None
        return bool(other and other.style == candidate.style)

    def _has_text(self, number: int) -> bool:
        """Whether a candidate's paragraph goes on below it."""
        candidate, paragraph = self._candidates[number], self._paragraphs[number]
        return bool(candidate and candidate.lines < paragraph.last - paragraph.first)

    def _is_prose(self, number: int) -> bool:
        if number >= len(self._paragraphs) or self._paragraphs[number].is_record:
            return False
        return is_prose(self._own(number))

    def _is_followed(self, number: int, candidate: Candidate) -> bool:
        if self._has_text(number):
            return True
        if number + 1 == len(self._paragraphs):
            return False
        below = self._candidates[number + 1]
        if candidate.style == "short":
            return self._is_prose(number + 1) and self._begins_afresh(number)
        if candidate.is_strong:
            return bool(below) or self._letters(number + 1) >= _FEWEST_LETTERS
        return bool(below and below.rank > candidate.rank) or self._is_prose(number + 1)

    def _begins_afresh(self, number: int) -> bool:
        """Whether a line goes on with no sentence before it, and is not set deeper than what follows, but centered."""
        indent = indent_of(self._lines[self._paragraphs[number].first])
        if indent_of(self._lines[self._paragraphs[number + 1].first]) < indent < _CENTERED_COLUMNS:
            return False
        before = self._lines[self._paragraphs[number - 1].last - 1].rstrip() if number else ""
        return not before or before.endswith(_SENTENCE_ENDS) or bool(self._candidates[number - 1])

    def _letters(self, number: int) -> int:
        return sum(character.isalpha() for line in self._own(number)[:5] for character in line[:200])

    def _begins_page_with(self, number: int) -> bool:
        """Whether a paragraph is the first of a page, running heads aside, and does not go on from the page before."""
        first = number
        while not self._paragraphs[first].begins_page:
            first -= 1
            if first < 0 or number - first > 2 or not self._is_running(self._paragraphs[first].first):
                return False
        before = first - 1
        while before >= 0 and first - before <= 2 and self._is_running(self._paragraphs[before].last - 1):
            before -= 1
        return before < 0 or self._lines[self._paragraphs[before].last - 1].rstrip().endswith(_SENTENCE_ENDS)

    def _is_running(self, number: int) -> bool:
        line = self._lines[number].strip()
        return line in self._running or is_page_number(line)

    def _running_heads(self) -> frozenset[str]:
        """Lines at the top or foot of several pages that differ in digits alone."""
        tops = [number for number, paragraph in enumerate(self._paragraphs) if paragraph.begins_page]
        at_edges = [self._lines[self._paragraphs[number].first].strip() for number in tops]
        at_edges += [self._lines[self._paragraphs[number - 1].last - 1].strip() for number in tops if number]
        counts = Counter(map(_shape, at_edges))
        return frozenset(line for line in at_edges if counts[_shape(line)] >= _REPEATED)

    def _repeated(self) -> Mapping[str, int]:
        lines = (self._lines[paragraph.first].strip() for paragraph in self._paragraphs)
        counts = Counter(_shape(line) for line in lines if len(line) <= _REPEATED_CHARS)
        return {shape: count for shape, count in counts.items() if count >= _REPEATED}


def _part(number: Number) -> Number:
    """The first part of what has the number."""
    return number[0], (*number[1], 1)


def _shape(line: str) -> str:
    """A line with its digits and whitespace alike."""
    return " ".join(re.sub(r"\d+", "#", line[: 2 * _REPEATED_CHARS]).split())
