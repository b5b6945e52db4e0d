"""Blocks as a parser of lines finds them: where each begins, and what is inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ctx_pipeline.documents.blocks import Block, BlockKind, trimmed


@dataclass(slots=True)
class Node:
    """A block that begins at a line, by its number from 0; see Block."""

    kind: BlockKind
    line: int
    level: int = 0
    title: str = ""
    head: tuple[str, ...] = ()
    children: list[Node] = field(default_factory=list)


def _as_found(text: str, kind: BlockKind, start: int, end: int) -> BlockKind:
    return kind


def node_blocks(
    text: str,
    lines: Sequence[int],
    nodes: Sequence[Node],
    first: int,
    last: int,
    kind_of: Callable[[str, BlockKind, int, int], BlockKind] = _as_found,
) -> tuple[Block, ...]:
    """Blocks of sibling nodes that share the lines `first` to `last` (exclusive): each up to where the next begins.

    So a line that belongs to no node, such as a lone quote marker between two paragraphs, goes to the one before it.
    `lines` are the offsets at which lines begin, with the text's end. `kind_of` judges each block by its text.
    """
    blocks = []
    for node, (line, next_line) in zip(nodes, pairwise([first, *(node.line for node in nodes[1:]), last]), strict=True):
        start, end = trimmed(text, lines[line], lines[next_line])
        if start < end:
            children = node_blocks(text, lines, node.children, line, next_line, kind_of) if node.children else ()
            kind = kind_of(text, node.kind, start, end)
            blocks.append(Block(kind, start, end, children, node.level, node.title, node.head))
    return tuple(blocks)
