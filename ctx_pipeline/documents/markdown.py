"""Block structure of Markdown, in character offsets of the untouched text.

Only block rules are parsed: headings alone need inline markup, for their titles. Link reference definitions stay
paragraphs, because their rule takes quadratic time over a list of definitions, which most changelogs end with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING

from ctx_pipeline.documents.blocks import NEWLINE, TITLE_CHARS, Block, BlockKind, line_starts, trimmed
from ctx_pipeline.documents.front_matter import front_matter_end
from ctx_pipeline.documents.nodes import Node, node_blocks
from ctx_pipeline.documents.region_rules import CONTAINER, REGION, add_region_rules, region_environment
from ctx_pipeline.documents.template_tags import closes_only, is_machinery, without_shortcodes

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.token import Token

# Beyond these depths (a list and its item count as two) a marker is ordinary text. The parser's own limit would take
# everything down to the end of the document into the deepest block. Each level of quotes costs a pass over the lines.
_MAX_QUOTE_DEPTH = 10
_MAX_LIST_DEPTH = 24
# Of a table's header row no more is of use; a table may have thousands of columns.
_HEAD_CELLS = 60
# Inline markup of a heading is parsed in its first characters only: brackets and asterisks cost quadratic time.
_TITLE_SOURCE_CHARS = 1_000

_ATTRIBUTE = r"""(?:[#.][\w:.-]+|[\w:-]+=(?:"[^"]*"|'[^']*'|[^\s"'{}]+))"""
_ATTRIBUTE_LIST = re.compile(rf"\{{:?\s*{_ATTRIBUTE}(?:\s+{_ATTRIBUTE})*\s*\}}")
_INLINE_MARKUP = re.compile(r"[\\`*_~\[\]<>&!]")
_REFERENCE_DEFINITION = re.compile(r"(?:\A|[\r\n]) {0,3}\[([^\[\]\r\n]{1,200})\]:[ \t]*\S")

_KINDS: dict[str, BlockKind] = {
    "heading_open": "heading",
    "paragraph_open": "paragraph",
    "fence": "fence",
    "code_block": "code",
    "table_open": "table",
    "html_block": "html",
    "hr": "rule",
    "blockquote_open": "quote",
    "bullet_list_open": "list",
    "ordered_list_open": "list",
    "list_item_open": "item",
    f"{CONTAINER}_open": "admonition",
    REGION: "skipped",  # unless the token says otherwise
}
_CONTAINERS = frozenset(["quote", "list", "item", "admonition"])
_CONTAINER_ENDS = frozenset(
    ["blockquote_close", "bullet_list_close", "ordered_list_close", "list_item_close", f"{CONTAINER}_close"]
)


def markdown_blocks(text: str) -> list[Block]:
    """The document's blocks by CommonMark's block rules, with GFM tables and front matter, and see `regions`.

    Two departures, for the sake of time: link reference definitions are paragraphs, and markers nested deeper than
    10 quotes or 12 lists are text.
    """
    blocks = []
    body_start = front_matter_end(text)
    if body_start:
        blocks.append(Block("front_matter", *trimmed(text, 0, body_start)))
    lines = [*line_starts(text), len(text)][len(NEWLINE.findall(text, 0, body_start)) :]
    lines[0] = body_start
    body = text[body_start:].removeprefix("\ufeff")
    environment = region_environment(NEWLINE.sub("\n", body) if "\r" in body else body)
    tokens = _block_parser(has_regions=bool(environment)).parse(body, environment)
    # What the parser takes for blank may hold characters that are not whitespace, such as a lone byte order mark.
    nodes = _nodes(tokens, _Titles(text)) or [Node("paragraph", 0)]
    return [*blocks, *node_blocks(text, lines, nodes, 0, len(lines) - 1, _kind)]


@cache
def _block_parser(*, has_regions: bool) -> MarkdownIt:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import blockquote, list_block

    parser = MarkdownIt("commonmark", {"maxNesting": 100}).enable("table").disable("reference")
    parser.core.ruler.disable(["inline", "text_join"])
    rules = parser.block.ruler
    rules.at("list", _within(_MAX_LIST_DEPTH, list_block), {"alt": ["paragraph", "reference", "blockquote"]})
    rules.at(
        "blockquote",
        _within(_MAX_QUOTE_DEPTH, blockquote),
        {"alt": ["paragraph", "reference", "blockquote", "list"]},
    )
    if has_regions:
        add_region_rules(parser)
    else:
        parser.parse("compiles the rule chains, which two threads must not do at once")
    return parser


_BlockRule = Callable[["StateBlock", int, int, bool], bool]


def _within(depth: int, rule: _BlockRule) -> _BlockRule:
    def limited(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
        return state.level < depth and rule(state, start_line, end_line, silent)

    return limited


def _nodes(tokens: Iterable[Token], titles: _Titles) -> list[Node]:
    root: list[Node] = []
    open_children = [root]
    heading = None
    head: list[str] | None = None
    for token in tokens:
        kind = _KINDS.get(token.type)
        if kind and token.map:
            kind = token.meta.get("kind", kind)
            node = Node(kind, token.map[0])
            open_children[-1].append(node)
            if kind in _CONTAINERS:
                open_children.append(node.children)
            elif kind == "heading":
                node.level = int(token.tag[1:])
                heading = node
            elif kind == "table":
                head = [] if token.type != REGION else None
                node.head = token.meta.get("head", ())
        elif token.type in _CONTAINER_ENDS:
            open_children.pop()
        elif heading and token.type == "inline":
            heading.title = titles.plain(token.content)
            heading = None
        elif head is not None:
            if token.type == "inline" and len(head) < _HEAD_CELLS:
                head.append(titles.plain(token.content))
            elif token.type == "thead_close":
                open_children[-1][-1].head = tuple(head)
                head = None
    return root


def _kind(text: str, kind: BlockKind, start: int, end: int) -> BlockKind:
    """What tags and anchors alone say nothing of goes with the blocks beside it."""
    if kind in ("paragraph", "html") and is_machinery(text, start, end):
        return "tail" if closes_only(text, start, end) else "lead"
    return kind


class _Titles:
    """Plain text of headings, in a document whose reference definitions are looked up only if a heading needs them."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._environment: dict[str, dict[str, dict[str, str]]] | None = None

    def plain(self, source: str) -> str:
        if source.endswith("}"):
            attributes = source.rfind("{")
            if _ATTRIBUTE_LIST.fullmatch(source, max(attributes, 0)):
                source = source[:attributes]
        source = without_shortcodes(source[:_TITLE_SOURCE_CHARS])
        if _INLINE_MARKUP.search(source):
            [inline] = _inline_parser().parseInline(source, self._references() if "[" in source else {})
            source = "".join(_plain_text(inline.children or []))
        return " ".join(source.split())[:TITLE_CHARS].rstrip()

    def _references(self) -> dict[str, dict[str, dict[str, str]]]:
        if self._environment is None:
            from markdown_it.common.utils import normalizeReference

            labels = map(normalizeReference, _REFERENCE_DEFINITION.findall(self._text))
            self._environment = {"references": {label: {"href": "", "title": ""} for label in labels}}
        return self._environment


@cache
def _inline_parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("strikethrough")
    parser.parseInline("*compiles the rule chains*")
    return parser


def _plain_text(tokens: Iterable[Token]) -> Iterable[str]:
    for token in tokens:
        if token.type == "image":
            yield from _plain_text(token.children or [])
        elif token.type in ("softbreak", "hardbreak"):
            yield " "
        elif token.type != "html_inline":
            yield token.content
