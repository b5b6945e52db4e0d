"""Front matter, comments and data URIs are not indexed, and the spans of chunks stay those of the untouched text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ctx_pipeline.chunking.fixed import FixedChunker
from ctx_pipeline.chunking.model import Chunk, Chunker
from ctx_pipeline.chunking.recursive import RecursiveChunker
from ctx_pipeline.chunking.semantic import SemanticChunker
from ctx_pipeline.chunking.structure import StructureChunker
from ctx_pipeline.contexts.model import Context
from ctx_pipeline.contexts.view import document_views
from ctx_pipeline.documents.blocks import INNER_CHARS
from ctx_pipeline.documents.model import Document
from ctx_pipeline.documents.parse import parse
from ctx_pipeline.embedding.hashing import HashingEmbedder
from ctx_pipeline.index.embedded import embedded_texts
from ctx_pipeline.index.rows import chunk_from_row, chunk_rows
from tests.markdown_documents import size_limit
from tests.project import Project

LIMIT = size_limit(128, 128)
STRATEGIES: list[Chunker] = [
    RecursiveChunker(LIMIT, 0, "x"),
    RecursiveChunker(LIMIT, 20, "x"),
    StructureChunker(LIMIT, 12, "x"),
    FixedChunker(LIMIT, 20, "x"),
    SemanticChunker(LIMIT, 70, HashingEmbedder(), "x"),
]
every_strategy = pytest.mark.parametrize("chunker", STRATEGIES, ids=lambda chunker: type(chunker).__name__)

IMAGE = "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUg" * 400
LONG = "<!--\n" + "\n".join(f"Hidden remark {number} of the editor." for number in range(20)) + "\n-->"


def chunks_of(text: str, chunker: Chunker = STRATEGIES[0], path: str = "a.md") -> list[Chunk]:
    chunks = chunker.split(parse(text.encode(), path))
    assert all(chunk.text == text[chunk.start : chunk.end] for chunk in chunks)
    return chunks


def indexed(chunks: list[Chunk]) -> str:
    return "\n".join(chunk.indexed_text for chunk in chunks)


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


@every_strategy
@pytest.mark.parametrize(
    "comment",
    [
        "<!-- Hidden remark. -->",
        LONG,
        "<!--\n\nHidden\n\n# remark\n\n-->",
        "{/* Hidden remark */}",
        "{/*\n\nHidden\n\n## remark\n\n*/}",
        "{{/* Hidden remark */}}",
        "{% comment %}\nHidden\n\n# remark\n{% endcomment %}",
        "{# Hidden remark #}",
        "[//]: # (Hidden remark)",
        "<!-- Hidden --> <!-- remark -->",
        "- <!-- Hidden remark -->",
        "> <!-- Hidden\n> remark -->",
    ],
)
def test_a_comment_is_not_indexed(chunker: Chunker, comment: str) -> None:
    text = f"# Title\n\nText before.\n\n{comment}\n\nText behind.\n\n## Next\n\n{comment}\n\nMore.\n\n{comment}\n"
    chunks = chunks_of(text, chunker)
    assert "Hidden" not in indexed(chunks) and "remark" not in indexed(chunks)
    assert words(indexed(chunks)) == words("Title Text before Text behind Next More")
    assert not any("remark" in heading for chunk in chunks for heading in chunk.heading_path)
    assert chunks_of(f"{comment}\n", chunker) == []


@every_strategy
def test_a_comment_inside_a_paragraph_is_not_indexed(chunker: Chunker) -> None:
    text = f"The limit <!-- ask Hidden --> rises. Then {{/* Hidden */}} it falls. And {LONG} it ends.\n"
    assert words(indexed(chunks_of(text, chunker))) == words("The limit rises Then it falls And it ends")
    assert len(chunks_of("The limit <!-- ask --> rises.\n", chunker)) == 1


def test_code_that_shows_comments_is_indexed() -> None:
    for example in ("`<!-- more -->`", "``<!-- `more` -->``", "```html\n<!-- more -->\n```", "    <!-- more -->"):
        assert "<!-- more -->" in indexed(chunks_of(f"Write:\n\n{example}\n")).replace("`more`", "more")
    assert "<!-- more" in indexed(chunks_of("An opening <!-- more\n\n# Heading\n\nText.\n"))


def test_short_comments_divide_nothing_and_long_ones_lie_in_no_chunk() -> None:
    short = "<!-- " + "x" * (INNER_CHARS - 9) + " -->"
    long = "<!-- " + "x" * (INNER_CHARS - 8) + " -->"
    assert [
        c.text for c in chunks_of(f"One.\n\n{short}\n\nTwo.\n", RecursiveChunker(size_limit(512, 512), 0, "x"))
    ] == [f"One.\n\n{short}\n\nTwo."]
    assert [chunk.text for chunk in chunks_of(f"One.\n\n{long}\n\nTwo.\n")] == ["One.", "Two."]
    assert [chunk.text for chunk in chunks_of(f"- One.\n- Two {long} three.\n- Four.\n")] == [
        "- One.\n- Two",
        "three.\n- Four.",
    ]


def test_a_list_below_a_long_comment_begins_a_chunk() -> None:
    items = "\n".join(f"- Item {number} of a list that has no room in a chunk." for number in range(30))
    comment = "<!-- Hidden " + "x" * INNER_CHARS + " -->"
    for text in (f"Before.\n\n{comment}\n\n{items}\n", f"> Before.\n\n{comment}\n\n{items}\n"):
        assert not any("Hidden" in chunk.text for chunk in chunks_of(text))


def test_no_overlap_reaches_over_what_lies_in_no_chunk() -> None:
    comment = "<!-- " + "x" * 400 + " -->"
    chunks = chunks_of(f"One sentence. Two.\n\n{comment}\n\nThree.\n", RecursiveChunker(size_limit(400, 400), 190, "x"))
    assert [chunk.text for chunk in chunks] == ["One sentence. Two.", "Three."]


def test_the_semantic_strategy_reads_no_image() -> None:
    read: list[str] = []

    class Spy(HashingEmbedder):
        def embed_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
            read.extend(texts)
            return super().embed_passages(texts)

    text = "\n\n".join(f"Sentence {number} says this. ![a]({IMAGE}) And this." for number in range(6))
    chunks_of(text, SemanticChunker(LIMIT, 70, Spy(), "x"))
    assert read and not any("iVBOR" in passage for passage in read)


@every_strategy
def test_front_matter_is_in_no_chunk(chunker: Chunker) -> None:
    text = "---\ntitle: Plan\nkey: value\n---\n# Plan\n\nText.\n"
    assert [chunk.text for chunk in chunks_of(text, chunker)] == ["# Plan\n\nText."]


@every_strategy
@pytest.mark.parametrize(
    ("source", "left"),
    [
        (f"![wiring]({IMAGE})", "![wiring]"),
        (f'![wiring]({IMAGE} "A title")', "![wiring]"),
        (f"![]({IMAGE})", ""),
        (f"[file]({IMAGE})", "[file]"),
        (f"[image1]: {IMAGE}", ""),
        (f"[image1]: <{IMAGE}>", ""),
        (f'<img src="{IMAGE}" alt="wiring">', ""),
        (f"<img\n  src='{IMAGE}'\n/>", ""),
        (f'<p align="center"><img src="{IMAGE}"></p>', '<p align="center"> </p>'),
        (f"- ![]({IMAGE})", ""),
        (f"| a | b |\n|---|---|\n| ![]({IMAGE}) | ![]({IMAGE}) |", "| a | b |\n|---|---|"),
        (f"```css\na {{ background: url({IMAGE}) }}\n```", "```css\na { background: url }\n```"),
        (IMAGE, ""),
    ],
    ids=lambda value: value[:24] + value[-6:],
)
def test_a_data_uri_lies_in_no_chunk(chunker: Chunker, source: str, left: str) -> None:
    text = f"# Manual\n\n## Wiring\n\nConnect it.\n\n{source}\n\n## Service\n\nReplace the anode.\n"
    chunks = chunks_of(text, chunker)
    assert len(chunks) <= 4
    assert "base64" not in indexed(chunks) and "iVBOR" not in "".join(chunk.text for chunk in chunks)
    assert words(indexed(chunks)) == words(f"Manual Wiring Connect it {left} Service Replace the anode")


def test_lines_of_base64_belong_to_their_uri() -> None:
    lines = "\n".join(["iVBORw0KGgoAAAANSUhEUg" * 3] * 60)
    text = f'Before.\n\n<img src="data:image/png;base64,{lines}\niVBO==">\n\nBehind.\n'
    assert words(indexed(chunks_of(text))) == ["Before", "Behind"]


@pytest.mark.parametrize("path", ["a.txt", "a.html", "a.js"])
def test_a_data_uri_lies_in_no_chunk_of_other_formats(path: str) -> None:
    text = f'<p>Before.</p>\n\n<img src="{IMAGE}">\n\nvar image = "{IMAGE}";\n\n<p>Behind.</p>\n'
    for chunker in STRATEGIES:
        assert "iVBOR" not in "".join(chunk.text for chunk in chunks_of(text, chunker, path))


def test_comments_of_html_are_not_indexed_and_those_of_plain_text_are() -> None:
    text = f"<p>Before.</p>\n\n{LONG}\n\n<p>Text <!-- Hidden\n\nremark --> goes on.</p>\n"
    for chunker in STRATEGIES:
        assert "remark" not in indexed(chunks_of(text, chunker, "a.html"))
        assert "remark" in indexed(chunks_of(text, chunker, "a.txt"))


def test_a_short_data_uri_is_text() -> None:
    text = "A pixel is `data:image/gif;base64,R0lGODlhAQABAAAAACw=` and data:,x is empty.\n"
    assert indexed(chunks_of(text)) == text.strip()


def test_the_language_is_not_that_of_a_data_uri() -> None:
    text = f"![plano]({IMAGE})\n\nEl cable marrón se conecta al borne, y el ánodo se cambia cada dos años de uso.\n"
    assert parse(text.encode(), "a.md").language == "es"


def test_a_view_leaves_out_what_lies_in_no_chunk() -> None:
    plain = "# T\n\n## A\n\nOne.\n\n<!-- short -->\n\n## B\n\nTwo.\n"
    hidden = f"# T\n\n## A\n\nOne.\n\n![]({IMAGE})\n\n{LONG}\n\n## B\n\nTwo.\n"
    [view] = document_views(parse(plain.encode(), "a.md"), chunks_of(plain), 1000)
    assert view.text == plain.strip()
    [view] = document_views(parse(hidden.encode(), "a.md"), chunks_of(hidden), 1000)
    assert view.text == "# T\n\n## A\n\nOne.\n\n## B\n\nTwo."


def test_what_is_left_out_of_a_chunk_is_stored_with_it() -> None:
    chunks = chunks_of("# T\n\nOne <!-- a --> two.\n\n<!-- b -->\n\nThree.\n")
    [row] = chunk_rows("docs/a.md", chunks, "1")
    assert chunk_from_row(row) == chunks[0]
    assert len(chunks[0].left_out) == 2
    older = {name: value for name, value in row.items() if name not in ("left_out", "table_head")}
    assert chunk_from_row({**older, "left_out": None, "table_head": None}).indexed_text == chunks[0].text


def test_what_is_embedded_leaves_out_comments() -> None:
    text = "# T\n\nOne <!-- hidden --> two.\n"
    parsed = parse(text.encode(), "a.md")
    document = Document("docs/a.md", "", 0, 0, 0, "", parsed)
    [embedded] = embedded_texts(document, chunks_of(text), [Context("T", "", "outline")], HashingEmbedder())
    assert embedded.text.split() == ["T", "#", "T", "One", "two."]


def test_neither_vectors_nor_full_text_know_comments_and_images(project: Project) -> None:
    project.write("a.md", f"# Heater\n\nThe anode lasts. <!-- zebra remark -->\n\n![wiring]({IMAGE})\n\nReplace it.\n")
    project.write("b.md", f"<!-- zebra -->\n\n![]({IMAGE})\n")
    summary = project.refresh()
    assert not summary.failed
    rows = project.search_rows()
    assert [row["text"] for row in rows] == [
        "# Heater\n\nThe anode lasts. <!-- zebra remark -->\n\n![wiring]",
        "Replace it.",
    ]
    assert all("zebra" not in row[column] for row in rows for column in ("text_english", "text_spanish", "identifiers"))
    # A document without chunks is no document that has lost them: another embedder needs no second reading.
    project.write_settings(contexts={"method": "none"})
    assert not project.refresh().failed


pieces = st.sampled_from(
    [
        *("Text.", "More text. And more.", "\n\n", "\n\n", "\n", "<!-- a -->", "<!--", "-->", LONG, "`", "{/* a */}"),
        *(f"![a]({IMAGE})", f"[i]: {IMAGE}", "- ", "> ", "    ", "# T", "| a | b |\n|---|---|\n", "```\n", "x" * 400),
    ]
)


@settings(max_examples=150, deadline=None)
@given(text=st.lists(pieces, max_size=14).map("".join), number=st.integers(0, len(STRATEGIES) - 1))
def test_any_text_is_cut_around_what_is_not_indexed(text: str, number: int) -> None:
    chunks = chunks_of(text, STRATEGIES[number])
    assert all(chunk.tokens <= 128 and chunk.embedder_tokens <= 128 for chunk in chunks)
    assert all(chunk.start <= start < end <= chunk.end for chunk in chunks for start, end in chunk.left_out)
    assert not any("iVBORw0KGgoAAAANSUhEUgiVBORw0KGgoAAAANSUhEUg" in chunk.text for chunk in chunks)


def test_real_documents_lose_only_what_is_not_indexed(corpora: Path) -> None:
    for path in sorted((corpora / "fastapi-es" / "base").rglob("*.md"))[:40]:
        text = path.read_bytes().decode()
        kept = re.sub(r"(?s)\A---\n.*?\n---\n", "", text)
        left = "".join(chunk.text for chunk in chunks_of(text))
        assert "".join(left.split()) == "".join(kept.split())
