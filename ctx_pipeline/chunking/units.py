"""The parts that chunks are packed from: blocks, split only as far as the size limit demands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ctx_pipeline.chunking.boundaries import (
    Cutter,
    character_cuts,
    code_line_cuts,
    code_paragraph_cuts,
    line_cuts,
    pieces,
    row_cuts,
    sentence_cuts,
    word_cuts,
)
from ctx_pipeline.chunking.model import SizeLimit
from ctx_pipeline.chunking.record_packing import priorities
from ctx_pipeline.chunking.tokens import count_tokens
from ctx_pipeline.documents.blocks import NO_CONTENT, NOT_INDEXED, Block, BlockKind, Span
from ctx_pipeline.documents.left_out import are_apart, indexed_part, indexed_spans, is_long, left_out_spans

# No token of o200k_base is longer, so longer texts need no counting to be known as too large.
_MAX_TOKEN_CHARS = 128

Range = tuple[int, int]
"""Positions in a list of units, end exclusive."""

_Steps = tuple[tuple[Cutter, bool], ...]
"""Ways to split, coarsest first, each with whether small neighbours stay together."""

_CHARACTERS: _Steps = ((character_cuts, True), (character_cuts, False))
_WORDS: _Steps = ((word_cuts, True), (word_cuts, False), *_CHARACTERS)
_LINES: _Steps = ((line_cuts, True), *_WORDS)
_PROSE: _Steps = ((sentence_cuts, True), *_LINES)
_CODE: _Steps = ((code_paragraph_cuts, True), (code_line_cuts, True), *_WORDS)
_STEPS: dict[BlockKind, _Steps] = {
    "table": ((row_cuts, True), *_LINES),
    "record": ((line_cuts, True), *_PROSE),
    "fence": _CODE,
    "code": _CODE,
    "html": _CODE,
}
WHOLE: frozenset[BlockKind] = frozenset(["table", "fence", "code", "admonition"])
"""Blocks that are divided only where they do not fit a chunk, beside the headings directly above them."""


@dataclass(frozen=True, slots=True)
class DividedTable:
    """What all parts of a table that is divided share."""

    start: int
    head: tuple[str, ...]


@dataclass(slots=True)
class Unit:
    """A span that is not divided further, with its size and that of the whitespace before it."""

    start: int
    end: int
    gap_start: int
    """Where the whitespace before `start` begins."""
    steps: _Steps = ()
    children: tuple[Block, ...] = ()
    kind: BlockKind = "paragraph"
    level: int = 0
    """Of a heading of the document itself, not of one inside a quote or list item; its first part keeps it."""
    title: str = ""
    sticky: bool = False
    """Belongs with what follows: a heading, a lead, the head of a table that is split."""
    apart: bool = False
    """No chunk holds this unit and the one before: what lies between them is not indexed, and long."""
    table: DividedTable | None = None
    """The table that this is a part of."""
    head: tuple[str, ...] = ()
    """Of a table."""
    priority: int = 0
    """Of a record: the higher, the rather a chunk begins with it."""
    tokens: int = -1
    embedder_tokens: int = -1
    gap_tokens: int = 0
    gap_embedder_tokens: int = 0

    @property
    def is_content(self) -> bool:
        return self.kind not in NO_CONTENT or (self.kind == "heading" and not self.level)


def fitting_units(text: str, blocks: Sequence[Block], limit: SizeLimit, whole: SizeLimit) -> list[Unit]:
    """The blocks as units that each fit `limit`, and where a heading comes before them, fit beside it.

    Left larger are single characters, and tables, code and admonitions that no heading precedes and that fit `whole`,
    the limit of a chunk of their own.
    """
    units = list(_units(text, blocks, blocks[0].start if blocks else 0, nested=False))
    gap_sizes = {"": (0, 0), " ": (0, 0)}
    left_out = list(left_out_spans(blocks))
    divided = True
    while divided:
        _measure(text, units, gap_sizes, whole, left_out)
        divided = False
        parts: list[Unit] = []
        for unit, lead in _with_leads(units, limit):
            is_whole = unit.kind in WHOLE
            too_large = not (whole if is_whole else limit).allows(unit.tokens, unit.embedder_tokens)
            crowded = any(lead) and not limit.allows(lead[0] + unit.tokens, lead[1] + unit.embedder_tokens)
            if too_large or crowded:
                # To make room for a heading no word is torn, and no line of code.
                steps_left = 0 if too_large else len(_WORDS if is_whole else _CHARACTERS)
                unit_parts = _split(text, unit, steps_left, limit)
                divided |= unit_parts[0] is not unit
                parts += unit_parts
            else:
                parts.append(unit)
        units = parts
    records = [unit for unit in units if unit.kind == "record"]
    for unit, priority in zip(records, priorities([text[u.start : u.end] for u in records]), strict=True):
        unit.priority = priority
    return units


def _units(text: str, blocks: Sequence[Block], gap_start: int, *, nested: bool) -> Iterator[Unit]:
    """What is indexed of the blocks; this is the one place where the rest is dropped."""
    for block, is_nested in _undivided(blocks, nested=nested):
        if block.kind in NOT_INDEXED:
            continue
        spans = list(indexed_spans(text, block))
        table = DividedTable(block.start, block.head) if block.kind == "table" and len(spans) > 1 else None
        for start, end in spans:
            apart = are_apart(text, gap_start, start)
            yield Unit(
                start,
                end,
                start if apart else gap_start,
                _STEPS.get(block.kind, _PROSE),
                block.children,
                block.kind,
                level=0 if is_nested else block.level,
                title=block.title,
                sticky=block.kind in ("heading", "lead"),
                apart=apart,
                table=table,
                head=block.head,
            )
            gap_start = end


def _undivided(blocks: Iterable[Block], *, nested: bool) -> Iterator[tuple[Block, bool]]:
    """The blocks, and whether they are inside others; those that hold what lies in no chunk are taken apart."""
    for block in blocks:
        if block.children and any(map(is_long, left_out_spans([block]))):
            yield from _undivided(block.children, nested=True)
        else:
            yield block, nested


def _measure(
    text: str,
    units: Sequence[Unit],
    gap_sizes: dict[str, tuple[int, int]],
    limit: SizeLimit,
    left_out: Sequence[Span],
) -> None:
    """Counts the units that are not counted yet, and the whitespace before them, with one call per tokenizer.

    The embedder does not see what is left out. Whitespace counts as if it stood alone, but a single space as nothing:
    it joins the word after it.
    """
    longest = _MAX_TOKEN_CHARS * limit.max_tokens
    too_large = (limit.max_tokens + 1, limit.embedder_tokens + 1)
    new = [unit for unit in units if unit.tokens < 0]
    counted = [unit for unit in new if unit.end - unit.start <= longest]
    gaps = {text[unit.gap_start : unit.start] for unit in new if unit.start - unit.gap_start <= longest}
    new_gaps = sorted(gaps - gap_sizes.keys())
    texts = [*(text[unit.start : unit.end] for unit in counted), *new_gaps]
    seen = [indexed_part(text, unit.start, unit.end, left_out) for unit in counted]
    seen += new_gaps
    sizes = list(zip(count_tokens(texts), limit.count_embedder_tokens(seen), strict=True)) if texts else []
    gap_sizes.update(zip(new_gaps, sizes[len(counted) :], strict=True))
    for unit in new:
        unit.tokens, unit.embedder_tokens = too_large
        gap = text[unit.gap_start : unit.start] if unit.start - unit.gap_start <= longest else None
        unit.gap_tokens, unit.gap_embedder_tokens = too_large if gap is None else gap_sizes[gap]
    for unit, size in zip(counted, sizes, strict=False):
        unit.tokens, unit.embedder_tokens = size


def _with_leads(units: Sequence[Unit], limit: SizeLimit) -> Iterator[tuple[Unit, tuple[int, int]]]:
    """Each unit with the size of the headings that should share its chunk: the last ones before it, up to 3/4 of it."""
    headings: list[Unit] = []
    for unit in units:
        tokens = embedder_tokens = 0
        if unit.sticky:
            headings.append(unit)
        elif headings:
            following = unit
            for heading in reversed(headings):
                more_tokens = tokens + heading.tokens + following.gap_tokens
                more_embedder_tokens = embedder_tokens + heading.embedder_tokens + following.gap_embedder_tokens
                if not limit.allows(more_tokens * 4 // 3, more_embedder_tokens * 4 // 3):
                    break
                tokens, embedder_tokens = more_tokens, more_embedder_tokens
                following = heading
            headings.clear()
        yield unit, (tokens, embedder_tokens)


def _split(text: str, unit: Unit, steps_left: int, limit: SizeLimit) -> list[Unit]:
    """The unit's parts by the coarsest way that divides it, without the last `steps_left` ways; else the unit."""
    if unit.children and (parts := list(_units(text, unit.children, unit.gap_start, nested=True))):
        parts[0].apart |= unit.apart
        return parts
    # Parts of a sixteenth of the limit, at about four characters a token, waste little of a chunk.
    small_chars = max(1, min(limit.max_tokens, limit.embedder_tokens) // 4)
    while len(unit.steps) > steps_left:
        (cutter, joins_small), unit.steps = unit.steps[0], unit.steps[1:]
        spans = pieces(text, unit.start, unit.end, cutter, small_chars if joins_small else 1)
        if len(spans) > 1:
            gap_starts = [unit.gap_start, *(end for _, end in spans)]
            begins_table = unit.kind == "table" and (unit.table is None or unit.table.start == unit.start)
            table = unit.table or (DividedTable(unit.start, unit.head) if unit.kind == "table" else None)
            kind: BlockKind = "record" if unit.kind == "record" else "paragraph"
            parts = [
                Unit(*span, gap_start, unit.steps, kind=kind, table=table)
                for span, gap_start in zip(spans, gap_starts, strict=False)
            ]
            parts[0].level, parts[0].title, parts[0].apart = unit.level, unit.title, unit.apart
            parts[0].sticky = begins_table
            return parts
    return [unit]
