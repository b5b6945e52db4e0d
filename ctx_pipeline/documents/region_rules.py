"""The rules by which the Markdown parser takes the blocks that were found before it runs."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any

from ctx_pipeline.documents.blocks import line_starts
from ctx_pipeline.documents.regions import Region, find_regions

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock

REGION, CONTAINER = "region", "region_container"
"""Types of the tokens."""

_MAX_DEPTH = 24
_INDENT = 4
# Blocks of HTML that end with a tag, not with a blank line.
_UNTIL_CLOSED = re.compile(r"<(?:!|\?|script\b|pre\b|style\b|textarea\b)", re.IGNORECASE)


def region_environment(text: str) -> dict[str, Any]:
    r"""What the rules need to know of a text whose newlines are \n; empty where they have nothing to do."""
    regions = find_regions(text)
    if not regions and "<!--" not in text:
        return {}
    return _environment(regions, text)


def _environment(regions: dict[int, Region], text: str) -> dict[str, Any]:
    return {
        "regions": regions,
        "starts": sorted(regions),
        "lines": line_starts(text),
        "last_comment": text.rfind("-->"),
    }


def add_region_rules(parser: MarkdownIt) -> None:
    """Let a parser of Markdown take regions; it then needs the environment of each text."""
    from markdown_it.rules_block import html_block

    def limited_html(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
        """HTML to the next blank line, but not over a region; a comment that is never closed is text."""
        start = _first_character(state, start_line)
        if state.src.startswith("<!--", start) and start > state.env["last_comment"]:
            return False
        if not silent and state.src.startswith("<", start) and not _UNTIL_CLOSED.match(state.src, start):
            end_line = min(end_line, _next_region(state, start))
        return html_block(state, start_line, end_line, silent)

    rules = parser.block.ruler
    rules.before("table", REGION, _region, {"alt": ["paragraph", "reference", "blockquote", "list"]})
    rules.at("html_block", limited_html, {"alt": ["paragraph", "reference", "blockquote"]})
    parser.parse("compiles the rule chains, which two threads must not do at once", _environment({}, ""))


def _region(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    region = state.env["regions"].get(_first_character(state, start_line))
    if region is None or state.is_code_block(start_line):
        return False
    last = _indented_end(state, start_line, end_line) if not region.end else _line_after(state, region)
    if last <= start_line or last > end_line or (region.kind == "admonition" and state.level >= _MAX_DEPTH):
        return False
    if silent:
        return True
    if region.kind == "admonition":
        _contain(state, region, start_line, last)
    else:
        token = state.push(REGION, "", 0)
        token.map, token.meta = [start_line, last], {"kind": region.kind, "head": region.head}
    state.line = last
    return True


def _contain(state: StateBlock, region: Region, start_line: int, last: int) -> None:
    """The content of an admonition, between its opening line and its closing one."""
    content_end = last - (region.end > 0)
    opening = state.push(f"{CONTAINER}_open", "", 1)
    opening.map = [start_line, last]
    _mark(state, "lead", start_line)
    parent, line_max, indent = state.parentType, state.lineMax, state.blkIndent
    state.parentType, state.lineMax = "container", content_end
    if not region.end:
        state.blkIndent = state.sCount[start_line] + _INDENT
    state.md.block.tokenize(state, start_line + 1, content_end)
    state.parentType, state.lineMax, state.blkIndent = parent, line_max, indent
    if region.end:
        _mark(state, "tail", content_end)
    state.push(f"{CONTAINER}_close", "", -1)


def _mark(state: StateBlock, kind: str, line: int) -> None:
    token = state.push(REGION, "", 0)
    token.map, token.meta = [line, line + 1], {"kind": kind}


def _first_character(state: StateBlock, line: int) -> int:
    return int(state.bMarks[line] + state.tShift[line])


def _line_after(state: StateBlock, region: Region) -> int:
    """The line after the region's last one."""
    return bisect_left(state.env["lines"], region.end)


def _indented_end(state: StateBlock, start_line: int, end_line: int) -> int:
    """The line after the last one that is indented below `start_line`; `start_line` when none is."""
    least = state.sCount[start_line] + _INDENT
    last = start_line
    for line in range(start_line + 1, end_line):
        if state.isEmpty(line):
            continue
        if state.sCount[line] < least:
            break
        last = line
    return last + 1 if last > start_line else start_line


def _next_region(state: StateBlock, offset: int) -> int:
    """The line on which the next region after an offset begins; one after all lines when there is none."""
    starts, lines = state.env["starts"], state.env["lines"]
    following = bisect_right(starts, offset)
    return bisect_right(lines, starts[following]) - 1 if following < len(starts) else len(lines)
