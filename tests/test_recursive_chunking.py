"""Chunks must lose nothing, respect both limits, keep what belongs together, and not move when another section does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import regex  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_pipeline.chunking.model import Chunk, SizeLimit
from ctx_pipeline.chunking.recursive import split
from ctx_pipeline.chunking.tokens import count_tokens
from ctx_pipeline.documents.blocks import NO_CONTENT, Block
from ctx_pipeline.documents.markdown import markdown_blocks
from tests.markdown_documents import (
    Indexed,
    assert_tables_and_fences_whole,
    contents,
    count_words,
    documents,
    paragraphs,
    size_limit,
)

WIDE, NARROW, TINY = size_limit(512, 379), size_limit(128, 128), size_limit(32, 40)


def assert_sound(text: str, chunks: Sequence[Chunk], limit: SizeLimit, *, markdown: bool = True) -> None:
    indexed = Indexed(text, "text/markdown" if markdown else "text/plain")
    position = 0
    newlines = 0
    for chunk in chunks:
        assert position <= chunk.start < chunk.end
        assert not indexed.between(position, chunk.start).strip()
        assert chunk.indexed_text == (indexed.between(chunk.start, chunk.end).strip() or chunk.text)
        assert chunk.text == text[chunk.start : chunk.end] == chunk.text.strip()
        newlines += len(re.findall(r"\r\n|\r|\n", text[position : chunk.start]))
        assert chunk.line == newlines + 1
        newlines += len(re.findall(r"\r\n|\r|\n", chunk.text))
        position = chunk.end
    assert not indexed.between(position, len(text)).strip()
    contents = [chunk.text for chunk in chunks]
    assert [chunk.tokens for chunk in chunks] == count_tokens(contents)
    assert [chunk.embedder_tokens for chunk in chunks] == limit.count_embedder_tokens(
        [chunk.indexed_text for chunk in chunks]
    )
    for chunk in chunks:
        within = chunk.tokens <= limit.max_tokens and chunk.embedder_tokens <= limit.embedder_tokens
        assert within or regex.fullmatch(r"\X", chunk.text)


def expected_path(text: str, chunk: Chunk) -> tuple[str, ...]:
    blocks = markdown_blocks(text)
    content = [block for block in blocks if block.kind not in NO_CONTENT]
    inside = [block for block in content if block.end > chunk.start and block.start < chunk.end]
    position = max(inside[0].start, chunk.start) if inside else chunk.end
    path: list[Block] = []
    for block in blocks:
        if block.kind == "heading" and block.start < position:
            path = [*(above for above in path if above.level < block.level), block]
    return tuple(block.title for block in path if block.title)


small_limits = st.sampled_from([TINY, size_limit(40, 12), size_limit(7, 9), size_limit(1, 1), size_limit(2, 100)])
limits = st.sampled_from([WIDE, NARROW]) | small_limits


@settings(max_examples=80, deadline=None)
@given(text=documents, limit=limits)
def test_markdown_is_covered_within_the_limits(text: str, limit: SizeLimit) -> None:
    chunks = split(text, markdown=True, limit=limit)
    assert_sound(text, chunks, limit)
    assert_tables_and_fences_whole(text, chunks, limit)
    assert [chunk.text for chunk in split(text, markdown=True, limit=limit)] == [chunk.text for chunk in chunks]


@settings(max_examples=60, deadline=None)
@given(text=documents, limit=st.sampled_from([WIDE, NARROW, size_limit(60, 60)]))
def test_heading_paths_are_those_in_force_at_the_first_content(text: str, limit: SizeLimit) -> None:
    for chunk in split(text, markdown=True, limit=limit):
        assert chunk.heading_path == expected_path(text, chunk)


@settings(max_examples=100, deadline=None)
@given(text=st.text(), limit=small_limits, markdown=st.booleans())
def test_any_text_is_covered_within_the_limits(text: str, limit: SizeLimit, markdown: bool) -> None:
    assert_sound(text, split(text, markdown=markdown, limit=limit), limit, markdown=markdown)


@settings(max_examples=40, deadline=None)
@given(
    preface=st.lists(paragraphs, max_size=2),
    sections=st.lists(
        st.lists(contents | st.sampled_from(["### Detalle", "#### Más"]), min_size=1, max_size=5),
        min_size=2,
        max_size=4,
    ),
    data=st.data(),
    limit=st.sampled_from([WIDE, NARROW, TINY]),
)
def test_an_edit_leaves_the_chunks_of_other_sections_alone(
    preface: list[str], sections: list[list[str]], data: st.DataObject, limit: SizeLimit
) -> None:
    def section_chunks(parts: list[list[str]]) -> list[list[tuple[str, tuple[str, ...]]]]:
        sources = ["# Manual", *preface]
        starts = [0]
        for number, part in enumerate(parts):
            starts.append(len("\n\n".join(sources)))
            sources += [f"## Sección {number}", "Texto.", *part]
        found: list[list[tuple[str, tuple[str, ...]]]] = [[] for _ in starts]
        for chunk in split("\n\n".join(sources), markdown=True, limit=limit):
            found[sum(start <= chunk.start for start in starts[1:])].append((chunk.text, chunk.heading_path))
        return found

    edited = data.draw(st.integers(0, len(sections) - 1))
    position = data.draw(st.integers(0, len(sections[edited])))
    addition = data.draw(paragraphs)
    changed = [list(part) for part in sections]
    if data.draw(st.booleans()):
        changed[edited].insert(position, addition)
    else:
        changed[edited][position:] = [addition]
    before, after = section_chunks(sections), section_chunks(changed)
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        # Without a preface the first section shares its chunks with the title above it.
        if number != edited + 1 and not (number == 0 and edited == 0 and not preface):
            assert old == new


@pytest.mark.parametrize("text", ["", " \n\t\r\n", "\u2028\x0c\xa0"])
def test_blank_text_has_no_chunks(text: str) -> None:
    assert split(text, markdown=True, limit=WIDE) == []
    assert split(text, markdown=False, limit=WIDE) == []


def test_a_short_document_is_one_chunk_with_its_figures() -> None:
    text = "\n# Plan\n\nHello world.\n"
    [chunk] = split(text, markdown=True, limit=WIDE)
    assert chunk == Chunk(1, 21, 2, "# Plan\n\nHello world.", ("Plan",), 6, 5)


def chunk_texts(text: str, limit: SizeLimit = WIDE) -> list[str]:
    chunks = split(text, markdown=True, limit=limit)
    assert_sound(text, chunks, limit)
    return [chunk.text for chunk in chunks]


def test_every_section_begins_a_chunk_and_titles_stay_with_the_first() -> None:
    text = "# Title\n\n## One\n\ntext one\n\n### Sub\n\ntext\n\n## Two\n\ntext two\n"
    assert chunk_texts(text) == ["# Title\n\n## One\n\ntext one\n\n### Sub\n\ntext", "## Two\n\ntext two"]


def test_an_introduction_is_a_section_of_its_own() -> None:
    assert chunk_texts("# Title\n\nIntro\n\n## One\n\na\n\n## Two\n\nb") == [
        "# Title\n\nIntro",
        "## One\n\na",
        "## Two\n\nb",
    ]


def test_a_heading_above_the_top_level_begins_a_chunk_too() -> None:
    assert chunk_texts("## A\n\na\n\n# B\n\nb\n\n## C\n\nc") == ["## A\n\na", "# B\n\nb", "## C\n\nc"]


def test_sections_follow_the_only_level_there_is() -> None:
    assert chunk_texts("intro\n\n### Only\n\ntext") == ["intro", "### Only\n\ntext"]


def test_front_matter_is_no_text_of_a_chunk() -> None:
    text = "---\ntitle: x\n---\n\n# Title\n\n## One\n\na\n\n## Two\n\nb"
    first, second = split(text, markdown=True, limit=WIDE)
    assert (first.text, first.line, first.heading_path) == ("# Title\n\n## One\n\na", 5, ("Title", "One"))
    assert second.heading_path == ("Title", "Two")
    assert split("---\ntitle: x\n---\n", markdown=True, limit=WIDE) == []
    assert [chunk.start for chunk in split(text, markdown=False, limit=WIDE)] == [0]


def test_plain_text_has_no_headings() -> None:
    text = "# One\n\na\n\n# Two\n\nb"
    [chunk] = split(text, markdown=False, limit=WIDE)
    assert (chunk.text, chunk.heading_path) == (text, ())


def prose(sentence_count: int) -> str:
    return " ".join(f"Sentence number {number} says this." for number in range(sentence_count))


def test_a_subsection_that_fits_a_chunk_is_not_divided() -> None:
    parts = [f"# T\n\n{prose(1)}", f"## A\n\n{prose(2)}\n\n{prose(3)}", f"## B\n\n{prose(1)}", "# U\n\nEnd."]
    assert chunk_texts("\n\n".join(parts), size_limit(1000, 40)) == parts


def test_a_subsection_too_large_for_a_chunk_begins_one_when_the_last_is_half_full() -> None:
    def first_chunk(sentences_before: int) -> str:
        large = "\n\n".join([prose(2)] * 5)
        return chunk_texts(f"# T\n\n{prose(sentences_before)}\n\n## A\n\n{large}", size_limit(1000, 50))[0]

    assert first_chunk(5) == f"# T\n\n{prose(5)}"
    assert first_chunk(1) == f"# T\n\n{prose(1)}\n\n## A\n\n" + "\n\n".join([prose(2)] * 3)


def test_chunks_of_a_long_section_are_filled() -> None:
    text = "# T\n\n" + "\n\n".join(prose(3) for _ in range(40))
    chunks = split(text, markdown=True, limit=NARROW)
    assert_sound(text, chunks, NARROW)
    assert min(chunk.tokens for chunk in chunks[:-1]) > 0.75 * NARROW.max_tokens


@pytest.mark.parametrize("heading", ["# Short", "# " + "long " * 20 + "heading"])
@pytest.mark.parametrize("content", [prose(6), "\n".join(f"- Item number {number} of them." for number in range(6))])
def test_a_heading_takes_along_the_first_part_of_a_paragraph_or_list(heading: str, content: str) -> None:
    text = f"# A\n\n{prose(5)}\n\n{heading}\n\n{content}"
    exact = size_limit(1000, count_words([content])[0])
    chunks = chunk_texts(text, exact)
    assert chunks[1].startswith(f"{heading}\n\n{content[:20]}")
    assert len(chunks) == 3


def test_no_word_is_torn_to_sit_beside_a_heading() -> None:
    word = "x" * 60
    heading = "# A heading of nine words in all, no less"
    exact = size_limit(count_tokens([f"{heading}\n\n{word}"])[0] - 2, 1000)
    assert chunk_texts(f"{heading}\n\n{word} and more", exact)[:2] == [heading, f"{word} and more"]


def test_a_table_or_code_is_divided_rather_than_leave_its_heading_behind() -> None:
    heading = "# Long heading of the section"
    table = "| a | b |\n|---|---|\n" + "\n".join(f"| row {row} | value |" for row in range(5))
    code = "```py\n" + "\n".join(f"call({line})" for line in range(12)) + "\n```"
    for block in (table, code):
        exact = size_limit(1000, count_words([block])[0])
        first, second = chunk_texts(f"{heading}\n\n{block}\n\nAfter.", exact)
        assert first.startswith(f"{heading}\n\n{block[:20]}")
        assert block.endswith(second.removesuffix("\n\nAfter."))
        assert chunk_texts(f"Before.\n\n{block}\n\nAfter.", exact) == ["Before.", block, "After."]


def test_tables_and_fences_inside_a_divided_list_stay_whole() -> None:
    fence = "```py\n  first()\n\n  second()\n\n  third()\n  ```"
    table = "| a | b |\n  |---|---|\n  | 1 | 2 |\n  | 3 | 4 |"
    text = f"- {prose(4)}\n\n  {fence}\n- {prose(4)}\n\n  {table}\n- {prose(4)}"
    chunks = chunk_texts(text, size_limit(60, 45))
    assert len(chunks) > 3
    assert any(fence in chunk for chunk in chunks)
    assert any(table in chunk for chunk in chunks)


def test_the_head_of_a_divided_table_stays_with_the_first_row() -> None:
    rows = "\n".join(f"| row {row} | value of row {row} |" for row in range(60))
    for words_before in range(90, 128):
        text = "word " * words_before + f"\n\n| column | other |\n|--------|-------|\n{rows}"
        assert any("|-------|\n| row 0 |" in chunk for chunk in chunk_texts(text, size_limit(1000, 128)))


def test_an_oversized_table_is_divided_between_rows() -> None:
    rows = [f"| row {row} | value of row {row} |" for row in range(60)]
    text = "# T\n\nBefore.\n\n| a | b |\n|---|---|\n" + "\n".join(rows)
    chunks = chunk_texts(text, NARROW)
    assert [row for chunk in chunks for row in chunk.split("\n") if row.startswith("| row")] == rows


def test_an_oversized_fence_is_divided_at_blank_lines_and_keeps_its_fences() -> None:
    functions = [f"def f{number}():\n    x = {number}\n    return x" for number in range(12)]
    chunks = chunk_texts("```py\n" + "\n\n\n".join(functions) + "\n```", size_limit(70, 70))
    assert len(chunks) > 2
    assert all(chunk.removeprefix("```py\n").startswith("def ") for chunk in chunks)
    assert chunks[-1].endswith("return x\n```")


@pytest.mark.parametrize("code_line", ["value = compute(1, 2)", "value = compute(1, 2)\n"])
def test_no_chunk_begins_or_ends_with_a_lone_fence(code_line: str) -> None:
    code = "\n".join([code_line] * 20)
    for words_before in range(40, 60):
        limit = size_limit(1000, words_before + 10)
        chunks = chunk_texts("word " * words_before + f"\n\n```python\n\n{code}\n```", limit)
        assert not [chunk for chunk in chunks if chunk.endswith("```python")]
        assert chunks[-1] != "```"


def test_an_oversized_paragraph_is_divided_at_sentences() -> None:
    chunks = chunk_texts(prose(40) + " It ends at 5 p.m. on the last day.", NARROW)
    assert len(chunks) > 1
    assert all(chunk.startswith("Sentence number") and chunk.endswith(".") for chunk in chunks)


def test_an_oversized_sentence_is_divided_at_lines_then_words() -> None:
    lines = [" ".join(f"w{line}x{word}" for word in range(8)) for line in range(6)]
    assert chunk_texts("\n".join(lines), size_limit(1000, 20)) == ["\n".join(lines[i : i + 2]) for i in (0, 2, 4)]
    assert "".join(chunk_texts(" ".join(lines), size_limit(1000, 5))).split() != lines
    assert set(" ".join(chunk_texts(" ".join(lines), size_limit(1000, 5))).split()) == set(" ".join(lines).split())


def test_chunks_of_short_words_are_filled() -> None:
    chunks = split("word " * 1_000, markdown=True, limit=size_limit(32, 1000))
    assert min(chunk.tokens for chunk in chunks[:-1]) > 28


@pytest.mark.parametrize("character", ["e\u0301", "👨‍👩‍👧‍👦", "👍🏽", "🇪🇸", "\ud83d\ude00", "का", "🏴󠁧󠁢󠁥󠁮󠁧󠁿"])
@pytest.mark.parametrize("limit", [size_limit(40, 1000), size_limit(3, 1000)])
def test_characters_are_not_torn_apart(character: str, limit: SizeLimit) -> None:
    text = character * 200
    chunks = chunk_texts(text, limit)
    assert len(chunks) > 1
    assert all(chunk == character * (len(chunk) // len(character)) for chunk in chunks)


@pytest.mark.parametrize(
    "text",
    [
        "x" + " " * 1_000_000 + "y",
        "word " * 200_000,
        "a" * 300_000,
        "<|endoftext|>" * 5_000,
        "# a\n" * 3_000,
        "#\n" * 3_000,
        "a" + "\u0301" * 50_000,
        "- a\n" * 3_000,
        ">" * 200_000,
        "".join("  " * depth + "- item\n" for depth in range(200)),
        "\x00\x0c\u2028" * 20_000,
        "a.\n" * 10_000,
        "\ud800" * 20_000,
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_hostile_text_is_covered_within_the_limits(text: str) -> None:
    for markdown in (True, False):
        assert_sound(text, split(text, markdown=markdown, limit=WIDE), WIDE, markdown=markdown)


def test_endless_combining_marks_do_not_exceed_the_limits() -> None:
    chunks = split("a" + "\u0301" * 50_000, markdown=True, limit=WIDE)
    assert max(chunk.tokens for chunk in chunks) <= WIDE.max_tokens


def test_limits_hold_for_an_embedder_whose_counts_do_not_add_up() -> None:
    def counting(texts: Sequence[str]) -> list[int]:
        return [count + text.count("\n\n") ** 2 for text, count in zip(texts, count_words(texts), strict=True)]

    text = "# T\n\n" + "\n\n".join(f"{prose(2)}\n\n### Sub\n\n{prose(1)}" for _ in range(20)) + "\n\n# U"
    for embedder_tokens in range(30, 90, 6):
        limit = SizeLimit(512, embedder_tokens, counting)
        chunks = split(text, markdown=True, limit=limit)
        assert_sound(text, chunks, limit)
        assert not [chunk.text for chunk in chunks if chunk.text.endswith("Sub")]


def test_headings_without_content_share_chunks() -> None:
    chunks = split("# a\n" * 1_000, markdown=True, limit=WIDE)
    assert len(chunks) < 10


def test_tokenizers_are_asked_in_batches() -> None:
    calls = []

    def counting(texts: Sequence[str]) -> list[int]:
        calls.append(len(texts))
        return count_words(texts)

    text = "\n\n".join(f"## Section {number}\n\n{prose(10)}\n\n- a\n- b" for number in range(50))
    assert len(split(text, markdown=True, limit=SizeLimit(512, 379, counting))) == 50
    assert len(calls) == 2


def test_tokenizers_are_not_asked_about_every_short_sentence() -> None:
    texts_counted = 0

    def counting(texts: Sequence[str]) -> list[int]:
        nonlocal texts_counted
        texts_counted += len(texts)
        return count_words(texts)

    split("A b. " * 30_000, markdown=True, limit=SizeLimit(512, 379, counting))
    assert texts_counted < 3_000


@pytest.mark.parametrize("sizes", [(0, 10), (10, 0), (512, -3)])
def test_a_limit_without_room_is_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=rf"max_tokens={sizes[0]} and embedder_tokens={sizes[1]}"):
        size_limit(*sizes)


def corpus_texts(corpora: Path, folder: str) -> list[str]:
    paths = sorted(path for path in (corpora / folder).rglob("*") if path.is_file())
    assert len(paths) >= 5
    return [path.read_bytes().decode() for path in paths]


@pytest.mark.parametrize("limit", [WIDE, NARROW, TINY], ids=["512", "128", "32"])
@pytest.mark.parametrize("folder", ["fastapi-es/base", "code-search/docs", "mixed-prose/docs", "prose-es/docs"])
def test_real_documents_are_covered_within_the_limits(corpora: Path, folder: str, limit: SizeLimit) -> None:
    for text in corpus_texts(corpora, folder):
        markdown = folder.startswith("fastapi")
        assert_sound(text, split(text, markdown=markdown, limit=limit), limit, markdown=markdown)


def test_no_chunk_of_real_documents_ends_with_a_heading(corpora: Path) -> None:
    for text in corpus_texts(corpora, "fastapi-es/base"):
        ends = {block.end for block in markdown_blocks(text) if block.kind == "heading"}
        assert not [chunk.text for chunk in split(text, markdown=True, limit=WIDE)[:-1] if chunk.end in ends]
