"""Block structure of Markdown, in character offsets of the untouched text.

Only block rules are parsed: headings alone need inline markup, for their titles. Link reference definitions stay
paragraphs, because their rule takes quadratic time over a list of definitions, which most changelogs end with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ctx_pipeline.documents.blocks import NEWLINE, TITLE_CHARS, Block, BlockKind, line_starts, trimmed
from ctx_pipeline.documents.region_rules import CONTAINER, REGION, add_region_rules, region_environment
from ctx_pipeline.documents.template_tags import closes_only, is_machinery, without_shortcodes

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.token import Token

FRONT_MATTER_CHARS = 65_536

# Beyond these depths (a list and its item count as two) a marker is ordinary text. The parser's own limit would take
# everything down to the end of the document into the deepest block. Each level of quotes costs a pass over the lines.
_MAX_QUOTE_DEPTH = 10
_MAX_LIST_DEPTH = 24
# Of a table's header row no more is of use; a table may have thousands of columns.
_HEAD_CELLS = 60
# Inline markup of a heading is parsed in its first characters only: brackets and asterisks cost quadratic time.
_TITLE_SOURCE_CHARS = 1_000

_FRONT_MATTER_OPENING = re.compile(r"\ufeff?---[ \t]*(?=[\r\n])")
_FRONT_MATTER_CLOSING = re.compile(r"[\r\n](?:---|\.\.\.)[ \t]*(?=[\r\n]|\Z)")
# A document may also begin with a thematic break: front matter is what has a key on its first line of content.
_FRONT_MATTER_KEY = re.compile(r"""(?:\s|#[^\r\n]*[\r\n])*+["']?\w[^:\r\n]*:(?:\s|\Z)""")
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
    """The document's blocks by CommonMark's block rules, with GFM tables, YAML front matter, and see `regions`.

    Two departures, for the sake of time: link reference definitions are paragraphs, and markers nested deeper than
    10 quotes or 12 lists are text.
    """
    blocks = []
    matter = _find_front_matter(text)
    body_start = matter.end if matter else 0
    if matter:
        blocks.append(Block("front_matter", *trimmed(text, 0, body_start)))
    lines = [*line_starts(text), len(text)][len(NEWLINE.findall(text, 0, body_start)) :]
    lines[0] = body_start
    body = text[body_start:].removeprefix("\ufeff")
    environment = region_environment(NEWLINE.sub("\n", body) if "\r" in body else body)
    tokens = _block_parser(has_regions=bool(environment)).parse(body, environment)
    # What the parser takes for blank may hold characters that are not whitespace, such as a lone byte order mark.
    nodes = _nodes(tokens, _Titles(text)) or [_Node("paragraph", 0)]
    return [*blocks, *_blocks(text, lines, nodes, 0, len(lines) - 1)]


def front_matter(text: str) -> dict[str, object]:
    """The YAML mapping between `---` lines at the top of a document, keys as text.

    {} when there is none, and when it is malformed, not a mapping, longer than 65,536 characters, or has aliases
    (nested aliases can stand for more values than fit in memory).
    """
    matter = _find_front_matter(text)
    if not matter:
        return {}
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("aliases are not supported")
            return super().compose_node(parent, index)

    try:
        values = yaml.load(matter.content, Loader)
    # Beside YAMLError, nonsense raises RecursionError (nesting), ValueError (dates, huge integers), and KeyError,
    # IndexError or AttributeError (tags such as `!!bool maybe`).
    except Exception:
        return {}
    return {str(key): value for key, value in values.items()} if isinstance(values, dict) else {}


@dataclass(frozen=True, slots=True)
class _FrontMatter:
    content: str
    end: int


def _find_front_matter(text: str) -> _FrontMatter | None:
    opening = _FRONT_MATTER_OPENING.match(text)
    closing = opening and _FRONT_MATTER_CLOSING.search(text, opening.end(), FRONT_MATTER_CHARS)
    if not opening or not closing or not _FRONT_MATTER_KEY.match(text, opening.end(), closing.start()):
        return None
    return _FrontMatter(text[opening.end() : closing.start()], closing.end())


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


@dataclass(slots=True)
class _Node:
    kind: BlockKind
    line: int
    level: int = 0
    title: str = ""
    head: tuple[str, ...] = ()
    children: list[_Node] = field(default_factory=list)


def _nodes(tokens: Iterable[Token], titles: _Titles) -> list[_Node]:
    root: list[_Node] = []
    open_children = [root]
    heading = None
    head: list[str] | None = None
    for token in tokens:
        kind = _KINDS.get(token.type)
        if kind and token.map:
            kind = token.meta.get("kind", kind)
            node = _Node(kind, token.map[0])
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


def _blocks(text: str, lines: Sequence[int], nodes: Sequence[_Node], first: int, last: int) -> tuple[Block, ...]:
    """Blocks of sibling nodes that share the lines `first` to `last` (exclusive): each up to where the next begins.

    So a line that belongs to no node, such as a lone quote marker between two paragraphs, goes to the one before it.
    """
    blocks = []
    for node, (line, next_line) in zip(nodes, pairwise([first, *(node.line for node in nodes[1:]), last]), strict=True):
        start, end = trimmed(text, lines[line], lines[next_line])
        if start < end:
            children = _blocks(text, lines, node.children, line, next_line) if node.children else ()
            kind = node.kind
            if (kind == "paragraph" or kind == "html") and is_machinery(text, start, end):
                kind = "tail" if closes_only(text, start, end) else "lead"
            blocks.append(Block(kind, start, end, children, node.level, node.title, node.head))
    return tuple(blocks)


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
