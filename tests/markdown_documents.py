"""Generated Markdown documents, and a token count that needs no model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from ctx_pipeline.chunking.model import Chunk, SizeLimit
from ctx_pipeline.chunking.tokens import count_tokens
from ctx_pipeline.documents.blocks import Block
from ctx_pipeline.documents.left_out import left_out_spans, without
from ctx_pipeline.documents.structure import document_blocks


def count_words(texts: Sequence[str]) -> list[int]:
    return [len(re.findall(r"\w+|[^\w\s]", text)) for text in texts]


def size_limit(max_tokens: int, embedder_tokens: int) -> SizeLimit:
    return SizeLimit(max_tokens, embedder_tokens, count_words)


class Indexed:
    """What of a document's text is indexed."""

    def __init__(self, text: str, media_type: str) -> None:
        self._text = text
        self._left_out = list(left_out_spans(document_blocks(text, media_type)))

    def between(self, start: int, end: int) -> str:
        spans = [(max(a, start), min(b, end)) for a, b in self._left_out if a < end and b > start]
        return without(self._text[start:end], start, spans)


def assert_tables_and_fences_whole(text: str, chunks: Sequence[Chunk], limit: SizeLimit, overlap: int = 0) -> None:
    """They are where they fit a chunk; with headings directly above them, beside these and the room for overlap."""
    for start, block in with_headings_above(document_blocks(text, "text/markdown")):
        if block.kind in ("table", "fence"):
            source = text[start : block.end]
            # Sizes of headings and what follows are added up, which may come to a token more for each.
            spare = 4 * (source.count("\n\n") + 1) if start < block.start else 0
            tokens, words = count_tokens([source])[0] + spare, count_words([source])[0] + spare
            room = limit.beside_overlap(overlap) if start < block.start else limit
            if room.allows(tokens, words):
                assert any(chunk.start <= block.start and block.end <= chunk.end for chunk in chunks), source


def with_headings_above(blocks: Sequence[Block], above: int | None = None) -> Iterator[tuple[int, Block]]:
    """Each block, also inside others, and where the headings directly above it begin."""
    for block in blocks:
        start = block.start if above is None else above
        yield start, block
        yield from with_headings_above(block.children, above)
        above = start if block.kind in ("heading", "lead", "tail", "skipped") else None


WORDS = [
    *("uno", "dos", "límite", "sube", "a1", "x_y", "`code`", "10.000", "plan,", "fin.", "¿Qué?", "año", "中文"),
    "<|endoftext|>",
]
words = st.sampled_from(WORDS)
sentences = st.lists(words, min_size=1, max_size=12).map(lambda parts: " ".join(parts) + ".")
paragraphs = st.tuples(st.sampled_from([" ", " ", "\n"]), st.lists(sentences, min_size=1, max_size=8)).map(
    lambda parts: parts[0].join(parts[1])
)
headings = st.sampled_from(
    ["# Título", "## Límites `x`", "## Two", "### Sub { #sub }", "#### Deep", "##", "Setext\n---"]
)
code_lines = st.lists(st.sampled_from(["x = 1", "", "# no", "  y()"]), max_size=12)
fences = st.tuples(st.sampled_from(["```", "~~~"]), code_lines).map(
    lambda parts: "\n".join([f"{parts[0]}py", *parts[1], parts[0]])
)
tables = st.lists(st.tuples(words, words), max_size=12).map(
    lambda rows: "\n".join(["| a | b |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)])
)


def indented(text: str, first: str, rest: str) -> str:
    return first + text.replace("\n", "\n" + rest)


def containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    inside = st.lists(inner, min_size=1, max_size=3).map("\n\n".join)
    items = inside.map(lambda text: indented(text, "- ", "  "))
    quotes = inside.map(lambda text: indented(text, "> ", "> "))
    return quotes | st.lists(items, min_size=1, max_size=4).map("\n".join)


contents = st.recursive(paragraphs | fences | tables, containers, max_leaves=6)
spaces = st.sampled_from(["\n\n", "\n\n", "\n\n", "\n \t\n", "\n\n\n\n\n", "\n\x0c\n", "\n\n\u2028\n\n", "\n\n   "])
documents = st.tuples(
    st.sampled_from(["", "", "---\ntitle: x\n---\n"]),
    st.lists(st.tuples(contents | headings, spaces).map("".join), max_size=10).map("".join),
    st.sampled_from(["\n", "\n", "\r\n", "\r"]),
).map(lambda parts: (parts[0] + parts[1]).replace("\n", parts[2]))
