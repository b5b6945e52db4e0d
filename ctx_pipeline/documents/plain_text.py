"""Block structure of plain text: paragraphs, headings that only their shape tells, messages, lines of data."""

from __future__ import annotations

import re
from itertools import pairwise

from ctx_pipeline.documents.blocks import Block, blank_line_cuts, line_starts, trimmed
from ctx_pipeline.documents.nodes import Node, node_blocks
from ctx_pipeline.documents.plain_headings import Paragraph, find_headings
from ctx_pipeline.documents.records import data_lines, message_ends, message_starts

_SAMPLE_LINES = 400
_SAMPLE_LINE_CHARS = 200
_CODE_LINE = re.compile(
    r"""[^\r\n]*(?:[{}]|\}[;,)]+|\)[;,:]|[)\]\w"'];|->|=>|\\)\s*(?://.*|/\*.*)?\Z
    |[^\r\n]*\S(?:\(\)|[=!+]=|&&|\|\||::|->|=>)
    |[)\]}@$<]|//|/\*|\*/|\*\s|\#(?:include|define|if|endif|pragma|!|\[|\s)|--\s|;;
    |(?:import|from|use|package|using|require|include)\s+["'<\w]\S*(?:\s+(?:import|as)\b.*)?\Z
    |(?:def|class|fn|func|fun|function|struct|enum|trait|interface|impl|module|namespace|const|let|var|return)\s+\S+[^.]*\Z
    |[\w.\[\]"'*&$>-]+\s*(?::\s*[\w.\[\]]+\s*)?[-+*/|&^%:]?=\s*\S
    |[\w.$:>-]+\(.*[(),:]\Z
    """,
    re.VERBOSE,
)
_CODE_SHARE = 0.3


def plain_blocks(text: str) -> list[Block]:
    """The blocks of plain text in order; together they hold every character other than whitespace.

    Source code is paragraphs alone: its lines are neither headings nor messages. A form feed begins a paragraph.
    """
    starts = line_starts(text)
    raw_lines = [text[start:end] for start, end in pairwise([*starts, len(text)])]
    lines = [line.strip() for line in raw_lines]
    if _is_code(lines):
        return paragraphs(text)
    messages = message_starts(lines)
    ends = dict(zip(messages, message_ends(lines, messages), strict=True))
    nodes: list[Node] = []
    found: list[Paragraph] = []
    position, on_new_page = 0, True
    while position < len(lines):
        if position in ends:
            nodes.append(Node("record", position))
            found.append(Paragraph(position, ends[position], is_record=True))
            position = ends[position]
            on_new_page = False
        elif not lines[position]:
            on_new_page |= "\f" in raw_lines[position]
            position += 1
        else:
            on_new_page |= "\f" in _lead(raw_lines[position])
            end = position + 1
            while end < len(lines) and lines[end] and end not in ends and "\f" not in _lead(raw_lines[end]):
                end += 1
            found.append(Paragraph(position, end, begins_page=on_new_page and bool(position)))
            on_new_page = "\f" in raw_lines[end - 1].rstrip("\r\n")[-1:]
            position = end
    headings = find_headings(raw_lines, found)
    nodes = []
    for paragraph in found:
        first = paragraph.first
        heading = headings.get(first)
        if heading:
            nodes.append(Node("heading", first, heading.level, heading.title))
            first += heading.lines
        if paragraph.is_record:
            nodes.append(Node("record", first))
        elif first < paragraph.last:
            records = data_lines(lines[first : paragraph.last])
            nodes += [Node("record", first + number) for number in records] or [Node("paragraph", first)]
    return list(node_blocks(text, [*starts, len(text)], nodes or [Node("paragraph", 0)], 0, len(lines)))


def paragraphs(text: str) -> list[Block]:
    """Paragraphs alone: runs of lines separated by blank lines."""
    spans = (trimmed(text, start, end) for start, end in pairwise([0, *blank_line_cuts(text, 0, len(text)), len(text)]))
    return [Block("paragraph", start, end) for start, end in spans if start < end]


def _is_code(lines: list[str]) -> bool:
    sample: list[str] = []
    for line in lines:
        if line:
            sample.append(line[:_SAMPLE_LINE_CHARS])
            if len(sample) == _SAMPLE_LINES:
                break
    return sum(bool(_CODE_LINE.match(line)) for line in sample) > _CODE_SHARE * len(sample)


def _lead(line: str) -> str:
    """The whitespace at a line's beginning."""
    return line[: len(line) - len(line.lstrip())]
