"""What of a document is not indexed: front matter, comments, and files that are written into the text as data URIs.

All else is: each of its characters other than whitespace lies in a chunk. Spans stay those of the untouched text. A
comment of at most 300 characters may lie inside a chunk's span, and is left out where the chunk is embedded and put
into full text, as the tags of an HTML table are; what is longer lies in no chunk. A data URI of fewer than 100
characters is text like any other.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ctx_pipeline.documents.blocks import INNER_CHARS, NOT_INDEXED, Block, Span, trimmed
from ctx_pipeline.documents.regions import COMMENTS

_DATA_CHARS = 100

# In quotes or brackets base64 may go on in further lines; elsewhere it ends with the word.
_DATA = (
    r"data:[\w.+-]{1,60}/[\w.+-]{1,80}(?:;[\w.=+-]{1,60})*,(?:[^\s\"'<>()\[\]{}`|\\]++)"
    r"(?:\s{1,40}[A-Za-z0-9+/=]{60,}+)*+(?:\s{1,40}[A-Za-z0-9+/]{1,80}={0,2}(?=\s*[\"')>]))?"
)
_DATA_URI = re.compile(
    rf"""(?:!\[\]\(\s*|\(\s*)<?{_DATA}>?(?:\s+(?:"[^"\r\n]*"|'[^'\r\n]*'))?\s*\)  # of an image or a link
    |^[ \t>]{{0,20}}\[[^\[\]\r\n]{{1,200}}\]:[ \t]*<?{_DATA}>?                      # of a reference definition
    |<(?:img|source|image|embed|object|link)\b[^<>]{{0,500}}?=\s*["']?{_DATA}[^<>]{{0,500}}>
    |{_DATA}""",
    re.MULTILINE | re.VERBOSE | re.IGNORECASE,
)
# Of a table in HTML the cells are indexed: with its tags it would be twice as long, and alike to all other tables.
_TABLE_TAG = re.compile(
    rf"</?(?:table|thead|tbody|tfoot|tr|t[hd]|caption|colgroup|col)\b[^<>]{{0,{INNER_CHARS - 20}}}>", re.IGNORECASE
)
# The first alternative is code, in which a comment is what the text is about.
_COMMENT = re.compile(
    r"(?P<code>(?<!`)(?P<ticks>`{1,3})(?!`)(?s:.){1,1000}?(?<!`)(?P=ticks)(?!`))"
    r"|(?P<whole>^[ ]{0,3}\[(?://|comment)\]:[ ]*(?:\#|<>)[^\r\n]*)"
    r"|(?P<mark><!--|\{/\*|\{\{/\*)",
    re.MULTILINE,
)
_COMMENT_SIGNS = ("-->", "*/}", "[//]:", "[comment]:")
# What may remain of a block whose content is left out: markers of lists and quotes, bars of tables, brackets.
_NOTHING = re.compile(r"""(?:[\s>*+|\-()\[\]!:;,."'/<=]|\b\d{1,9}[.)])*+""")


def with_left_out(text: str, blocks: Sequence[Block], media_type: str) -> list[Block]:
    """The blocks, told what inside them is not indexed; those of which nothing is left are `skipped`."""
    anywhere = list(_data_uris(text))
    if media_type == "text/html":
        anywhere = sorted([*anywhere, *_comments(text, 0, len(text))])
    has_comments = media_type == "text/markdown" and any(sign in text for sign in _COMMENT_SIGNS)
    if not anywhere and not has_comments and "<t" not in text and "<T" not in text:
        return list(blocks)
    finder = _Finder(text, anywhere, has_comments=has_comments)
    return [finder.told(block) for block in blocks]


class _Finder:
    def __init__(self, text: str, anywhere: Sequence[Span], *, has_comments: bool) -> None:
        self._text, self._anywhere, self._has_comments = text, anywhere, has_comments
        self._ends = [end for _, end in anywhere]

    def told(self, block: Block) -> Block:
        if block.kind in NOT_INDEXED:
            return block
        if block.children:
            children = tuple(map(self.told, block.children))
            is_indexed = any(child.kind not in NOT_INDEXED for child in children)
            return replace(block, children=children) if is_indexed else Block("skipped", block.start, block.end)
        spans = self._spans(block)
        if not spans:
            return block
        rest = without(self._text[block.start : block.end], block.start, spans)
        if block.kind != "heading" and _NOTHING.fullmatch(rest):
            return Block("skipped", block.start, block.end)
        return replace(block, left_out=tuple(spans))

    def _spans(self, block: Block) -> list[Span]:
        start, end = block.start, block.end
        found = []
        for number in range(bisect_left(self._ends, start + 1), len(self._anywhere)):
            if self._anywhere[number][0] >= end:
                break
            found.append((max(self._anywhere[number][0], start), min(self._ends[number], end)))
        if self._has_comments and block.kind not in ("fence", "code"):
            found += _comments(self._text, start, end)
        spans = _widened(self._text, sorted(found), start, end)
        if block.kind == "table" and self._text.startswith("<", start):
            tags = (tag.span() for tag in _TABLE_TAG.finditer(self._text, start, end))
            spans = sorted([*spans, *(tag for tag in tags if not clipped(spans, *tag))])
        return spans


def _data_uris(text: str) -> Iterator[Span]:
    if "data:" in text or "DATA:" in text:
        spans = (uri.span() for uri in _DATA_URI.finditer(text))
        yield from ((start, end) for start, end in spans if end - start >= _DATA_CHARS)


def without_data_uris(text: str, characters: int) -> str:
    """At least the first characters of what is left of a text without its data URIs, if it has as many."""
    left = 0
    position = 0
    spans = []
    for start, end in _data_uris(text):
        spans.append((start, end))
        left += start - position
        position = end
        if left >= characters:
            break
    return without(text, 0, spans) if spans else text


def _comments(text: str, start: int, end: int) -> Iterator[Span]:
    missing = set()
    position = start
    while comment := _COMMENT.search(text, position, end):
        position = comment.end()
        if comment["whole"]:
            yield comment.span()
        elif comment["mark"]:
            closing = COMMENTS[comment["mark"]]
            # `<!-->` is a whole comment.
            after = position - 2 * (comment["mark"] == "<!--")
            found = -1 if closing in missing else text.find(closing, after, end)
            if found < 0:
                missing.add(closing)
            else:
                position = found + len(closing)
                yield comment.start(), position


def _widened(text: str, spans: Iterable[Span], start: int, end: int) -> list[Span]:
    """The spans, apart; to long ones belongs what is between them and says nothing, such as the bar of a table."""
    found: list[Span] = []
    for span in spans:
        before = found[-1] if found else (start, start)
        overlaps = span[0] < before[1]
        says_nothing = is_long(span) and (not found or is_long(before)) and _NOTHING.fullmatch(text, before[1], span[0])
        if overlaps or says_nothing:
            found[-1:] = [(before[0], max(before[1], span[1]))]
        else:
            found.append(span)
    if found and is_long(found[-1]) and _NOTHING.fullmatch(text, found[-1][1], end):
        found[-1] = found[-1][0], end
    return found


def is_long(span: Span) -> bool:
    """Whether text that is not indexed is too long to lie inside a chunk."""
    return span[1] - span[0] > INNER_CHARS


def are_apart(text: str, end: int, start: int) -> bool:
    """Whether what lies between a chunk that ends at `end` and the next one is long and not indexed."""
    return start - end > INNER_CHARS and len(text[end:start].strip()) > INNER_CHARS


def without(text: str, offset: int, spans: Iterable[Span]) -> str:
    """A text that begins at `offset` of its document, with a space for each of the spans, which are in order and apart.

    But with none where there is whitespace.
    """
    parts: list[str] = []
    position = 0
    for start, end in [*spans, (offset + len(text), offset + len(text))]:
        part = text[position : max(start - offset, position)]
        if part and parts and not part[0].isspace() and not parts[-1][-1].isspace():
            parts.append(" ")
        parts += [part] if part else []
        position = max(end - offset, position)
    return "".join(parts)


def indexed_part(text: str, start: int, end: int, left_out: Sequence[Span]) -> str:
    """What is embedded and put into full text of a span of a document, of which `left_out` is not indexed."""
    own = clipped(left_out, start, end)
    # A limit of a few tokens may cut a chunk out of a comment.
    return without(text[start:end], start, own).strip() or text[start:end] if own else text[start:end]


def clipped(spans: Sequence[Span], start: int, end: int) -> tuple[Span, ...]:
    """What of the spans, which are in order and apart, lies between two offsets."""
    first = bisect_right(spans, start, key=lambda span: span[1])
    last = bisect_left(spans, end, key=lambda span: span[0])
    return tuple((max(span[0], start), min(span[1], end)) for span in spans[first:last])


def indexed_spans(text: str, block: Block) -> Iterator[Span]:
    """The spans of a block that lie in chunks: all but what is left out and too long to lie inside a chunk."""
    position = block.start
    for start, end in [*filter(is_long, block.left_out), (block.end, block.end)]:
        span = trimmed(text, position, start)
        if span[0] < span[1]:
            yield span
        position = end


def left_out_spans(blocks: Iterable[Block]) -> Iterator[Span]:
    """All spans of the blocks that are not indexed, in order."""
    for block in blocks:
        if block.kind in NOT_INDEXED:
            yield block.start, block.end
        elif block.children:
            yield from left_out_spans(block.children)
        else:
            yield from block.left_out
