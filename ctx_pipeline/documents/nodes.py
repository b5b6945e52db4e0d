"""Blocks as a parser of lines finds them: where each begins, and what is inside."""

from __future__ import annotations

from collections.abc import Sequence
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
    children: list[Node] = field(default_factory=list)


def node_blocks(text: str, lines: Sequence[int], nodes: Sequence[Node], first: int, last: int) -> tuple[Block, ...]:
    """Blocks of sibling nodes that share the lines `first` to `last` (exclusive): each up to where the next begins.

    So a line that belongs to no node, such as a lone quote marker between two paragraphs, goes to the one before it.
    `lines` are the offsets at which lines begin, with the text's end.
    """
    blocks = []
    for node, (line, next_line) in zip(nodes, pairwise([first, *(node.line for node in nodes[1:]), last]), strict=True):
        start, end = trimmed(text, lines[line], lines[next_line])
        if start < end:
            children = node_blocks(text, lines, node.children, line, next_line) if node.children else ()
            blocks.append(Block(node.kind, start, end, children, node.level, node.title))
    return tuple(blocks)
