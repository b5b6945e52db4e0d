"""What every chunking strategy promises, and what each one is chosen for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import regex  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ctx_pipeline.chunking import open_chunker
from ctx_pipeline.chunking.fixed import FixedChunker
from ctx_pipeline.chunking.model import Chunk, Chunker, SizeLimit
from ctx_pipeline.chunking.recursive import RecursiveChunker
from ctx_pipeline.chunking.semantic import SemanticChunker
from ctx_pipeline.chunking.structure import StructureChunker
from ctx_pipeline.chunking.tokens import count_tokens
from ctx_pipeline.documents.blocks import NO_CONTENT
from ctx_pipeline.documents.markdown import markdown_blocks
from ctx_pipeline.documents.model import Parsed
from ctx_pipeline.documents.parse import parse
from ctx_pipeline.documents.structure import document_blocks
from ctx_pipeline.embedding.hashing import HashingEmbedder
from ctx_pipeline.errors import SettingsError
from ctx_pipeline.settings import ChunkingSettings
from tests.markdown_documents import (
    Indexed,
    assert_tables_and_fences_whole,
    contents,
    count_words,
    documents,
    paragraphs,
    size_limit,
)
from tests.project import Project

MARKDOWN, PLAIN, SOURCE, HTML = "text/markdown", "text/plain", "text/x-source", "text/html"
WIDE, NARROW, TINY = size_limit(512, 379), size_limit(128, 128), size_limit(32, 40)
EMBEDDER = HashingEmbedder()


def recursive(limit: SizeLimit, overlap: int = 0) -> Chunker:
    return RecursiveChunker(limit, overlap, "test")


def fixed(limit: SizeLimit, overlap: int = 0) -> Chunker:
    return FixedChunker(limit, overlap, "test")


def structure(limit: SizeLimit, overlap: int = 0) -> Chunker:
    return StructureChunker(limit, overlap, "test")


def semantic(limit: SizeLimit, overlap: int = 0) -> Chunker:
    return SemanticChunker(limit, 70, EMBEDDER, "test")


STRATEGIES = (recursive, fixed, structure, semantic)
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.__name__)


def document(text: str, media_type: str = MARKDOWN) -> Parsed:
    return Parsed(text=text, media_type=media_type, title="t", language="es")


def assert_sound(text: str, chunks: Sequence[Chunk], limit: SizeLimit, overlap: int, media_type: str) -> None:
    indexed = Indexed(text, media_type)
    shared = []
    start = end = 0
    for chunk in chunks:
        if chunk is not chunks[0]:
            assert start < chunk.start
        assert end < chunk.end
        assert not indexed.between(end, chunk.start).strip()
        assert chunk.text == text[chunk.start : chunk.end] == chunk.text.strip()
        shared.append(text[chunk.start : end])
        start, end = chunk.start, chunk.end
    assert not indexed.between(end, len(text)).strip()
    assert max(count_tokens(shared), default=0) <= overlap
    newlines = [newline.end() for newline in re.finditer(r"\r\n|\r|\n", text)]
    assert [chunk.line for chunk in chunks] == [
        1 + int(np.searchsorted(newlines, chunk.start, side="right")) for chunk in chunks
    ]
    texts = [chunk.text for chunk in chunks]
    assert [chunk.tokens for chunk in chunks] == count_tokens(texts)
    assert [chunk.embedder_tokens for chunk in chunks] == limit.count_embedder_tokens(
        [chunk.indexed_text for chunk in chunks]
    )
    for chunk in chunks:
        within = chunk.tokens <= limit.max_tokens and chunk.embedder_tokens <= limit.embedder_tokens
        assert within or regex.fullmatch(r"\X", chunk.text)


def sound_chunks(
    strategy: Callable[[SizeLimit, int], Chunker],
    text: str,
    media_type: str = MARKDOWN,
    limit: SizeLimit = WIDE,
    overlap: int = 0,
) -> list[Chunk]:
    chunks = strategy(limit, overlap).split(document(text, media_type))
    assert_sound(text, chunks, limit, 0 if strategy is semantic else overlap, media_type)
    return chunks


def texts_of(chunks: Sequence[Chunk]) -> list[str]:
    return [chunk.text for chunk in chunks]


# Every strategy ----------------------------------------------------------------------------------------------------

code_pieces = st.sampled_from(
    [
        *(
            "def f(x):\n    return x",
            "class A:\n    x = 1\n\n    def g(self):\n        pass",
            "@decorator",
            "# comment",
        ),
        *("fn f() {\n    a();\n}", "impl A for B {\n    fn g() {}\n}", "/* open", "*/", "}", "{", '"""', "end"),
        *("namespace n {\nint f(int a,\n      int b)\n{\n}\n}", "#ifdef X", "  indented", "call(1, 2)", "x = {"),
    ]
)
html_pieces = st.sampled_from(
    [
        *("<h1>Uno</h1>", "<h2 id='x'>Dos &amp; <b>tres</b></h2>", "<p>Texto de un párrafo.</p>", "<pre>a\n\nb</pre>"),
        *("<table><tr><td>1</td></tr></table>", "<table>", "</pre>", "<h3>", "<!-- <h1>no</h1>", "-->", "<script>"),
        *("</script>", "<div>", "</div>", "text. More text.", "<h", "&lt;"),
    ]
)
written = st.tuples(documents, st.just(MARKDOWN)) | st.tuples(documents, st.just(PLAIN))
code = st.tuples(st.lists(code_pieces, max_size=12).map("\n\n".join), st.just(SOURCE))
pages = st.tuples(st.lists(html_pieces, max_size=12).map("\n".join), st.just(HTML))
any_text = st.tuples(st.text(), st.sampled_from([MARKDOWN, PLAIN, SOURCE, HTML]))


@every_strategy
@settings(max_examples=30, deadline=None)
@given(
    source=written | code | pages | any_text, limit=st.sampled_from([WIDE, NARROW, TINY]), overlap=st.integers(0, 15)
)
def test_spans_are_exact_in_order_complete_and_within_the_limits(
    strategy: Callable[[SizeLimit, int], Chunker], source: tuple[str, str], limit: SizeLimit, overlap: int
) -> None:
    text, media_type = source
    chunks = sound_chunks(strategy, text, media_type, limit, overlap)
    assert strategy(limit, overlap).split(document(text, media_type)) == chunks
    if strategy in (recursive, structure, semantic) and media_type == MARKDOWN:
        assert_tables_and_fences_whole(text, chunks, limit, 0 if strategy is semantic else overlap)


@every_strategy
def test_front_matter_lies_in_no_chunk(strategy: Callable[[SizeLimit, int], Chunker]) -> None:
    matter = "---\ntitle: Guide\nredirect_from:\n" + "  - /old/page/which-moved.html\n" * 200 + "---\n"
    alone, text = sound_chunks(strategy, matter), matter + "\n# Guide\n\nThe gateway listens.\n"
    assert alone == []
    assert texts_of(sound_chunks(strategy, text)) == ["# Guide\n\nThe gateway listens."]
    assert sound_chunks(strategy, matter + "Text.", PLAIN)[0].start == 0


@every_strategy
@settings(max_examples=15, deadline=None)
@given(source=written | any_text, limit=st.sampled_from([size_limit(1, 1), size_limit(2, 100), size_limit(7, 3)]))
def test_the_smallest_limits_hold(
    strategy: Callable[[SizeLimit, int], Chunker], source: tuple[str, str], limit: SizeLimit
) -> None:
    sound_chunks(strategy, *source, limit)


@every_strategy
@pytest.mark.parametrize(
    "text",
    [
        *("", " \n\t\r\n\u2028", "\n" * 50_000, "word " * 20_000, "a" * 100_000, "x" + " " * 200_000 + "y"),
        *("\ud800" * 10_000, "a" + "\u0301" * 5_000, "# a\n\nx.\n\n" * 800, "# a\n" * 2_000, "A b. " * 8_000),
        *("<html>" + "<h1 " * 20_000, "<html>" + "<pre>" * 20_000, "<html>" + "<!--" * 20_000, "{" * 50_000),
        *("class A {\n" * 3_000, "@a(\n" * 5_000, "/*\n" * 5_000, ("x" + " " * 5_000) * 50, "** " * 10_000),
    ],
    ids=lambda text: ascii(text[:14]),
)
def test_hostile_text(strategy: Callable[[SizeLimit, int], Chunker], text: str) -> None:
    for media_type in (MARKDOWN, SOURCE, HTML) if strategy is structure else (MARKDOWN,):
        chunks = sound_chunks(strategy, text, media_type, WIDE, 40)
        assert bool(chunks) == bool(text.strip())


@every_strategy
def test_work_grows_with_the_text(strategy: Callable[[SizeLimit, int], Chunker]) -> None:
    def characters_counted(text: str) -> int:
        counted = 0

        def counting(texts: Sequence[str]) -> list[int]:
            nonlocal counted
            counted += sum(map(len, texts))
            return count_words(texts)

        strategy(SizeLimit(128, 100, counting), 20).split(document(text))
        return counted

    section = "## Title\n\n" + "A sentence of some words. " * 60 + "\n\n### Sub\n\nMore text here.\n\n"
    assert characters_counted(section * 80) <= 8.5 * characters_counted(section * 10)


@every_strategy
@pytest.mark.parametrize("folder", ["fastapi-es/base", "code-search/docs"])
def test_real_documents(strategy: Callable[[SizeLimit, int], Chunker], corpora: Path, folder: str) -> None:
    paths = sorted(path for path in (corpora / folder).rglob("*") if path.is_file())[::9]
    assert len(paths) >= 10
    for path in paths:
        parsed = parse(path.read_bytes(), path.name)
        chunks = sound_chunks(strategy, parsed.text, parsed.media_type, NARROW, 30)
        if strategy in (recursive, structure, semantic) and parsed.media_type == MARKDOWN:
            assert_tables_and_fences_whole(parsed.text, chunks, NARROW)


def prose(count: int, topic: str = "Sentence number") -> str:
    return " ".join(f"{topic} {number} says this." for number in range(count))


@every_strategy
def test_settings_open_every_strategy(strategy: Callable[[SizeLimit, int], Chunker]) -> None:
    made = open_chunker(ChunkingSettings.model_validate({"strategy": strategy.__name__, "max_tokens": 64}), EMBEDDER)
    chunks = made.split(document(prose(40)))
    assert made.fingerprint.startswith(f"{strategy.__name__}/")
    assert len(chunks) > 1
    assert max(chunk.tokens for chunk in chunks) <= 64


@every_strategy
def test_a_refresh_indexes_the_chunks_of_the_chosen_strategy(
    project: Project, strategy: Callable[[SizeLimit, int], Chunker]
) -> None:
    project.write_settings(chunking={"strategy": strategy.__name__, "max_tokens": 64})
    texts = {"docs/a.md": f"# A\n\n{prose(30)}\n\n## B\n\n{prose(9)}", "docs/b.txt": PYTHON}
    for doc_id, text in texts.items():
        project.write(doc_id.removeprefix("docs/"), text)
    assert project.refresh().failures == {}
    rows = project.search_rows(("chunk_id", "doc_id", "start", "end", "text", "heading_path"))
    chunker = project.pipeline().chunker
    for doc_id, text in texts.items():
        expected = chunker.split(parse(text.encode(), doc_id))
        found = [(row["start"], row["end"], row["text"]) for row in rows if row["doc_id"] == doc_id]
        assert found == [(chunk.start, chunk.end, chunk.text) for chunk in expected]
    assert not project.pipeline().plan().work


def test_every_setting_that_moves_chunks_is_in_the_fingerprint() -> None:
    class Other(HashingEmbedder):
        fingerprint = "other"

    variants = [
        *({}, {"max_tokens": 256}, {"overlap": 9}, {"strategy": "fixed"}, {"strategy": "structure"}),
        *({"strategy": "fixed", "overlap": 9}, {"strategy": "structure", "overlap": 9}, {"strategy": "semantic"}),
        {"strategy": "semantic", "semantic_percentile": 80},
    ]
    made = [ChunkingSettings.model_validate(variant) for variant in variants]
    fingerprints = [open_chunker(one, EMBEDDER).fingerprint for one in made]
    assert len(set(fingerprints)) == len(variants)
    other = [open_chunker(one, Other()).fingerprint for one in made]
    changed = {one.strategy for one, before, after in zip(made, fingerprints, other, strict=True) if before != after}
    assert changed == {"semantic"}
    assert open_chunker(ChunkingSettings(semantic_percentile=80), EMBEDDER).fingerprint == fingerprints[0]


def test_an_overlap_that_the_window_has_no_room_for_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"chunking\.overlap must be less than half of the 384 tokens .* got 192"):
        open_chunker(ChunkingSettings(max_tokens=1000, overlap=192), EMBEDDER)


# Overlap -----------------------------------------------------------------------------------------------------------


def shared(text: str, chunks: Sequence[Chunk]) -> list[str]:
    return [text[after.start : before.end] for before, after in pairwise(chunks)]


@pytest.mark.parametrize("overlap", [10, 30, 60])
def test_windows_overlap_by_about_the_wanted_tokens(overlap: int) -> None:
    text = prose(200)
    chunks = sound_chunks(fixed, text, PLAIN, NARROW, overlap)
    assert all(overlap - 3 <= tokens <= overlap for tokens in count_tokens(shared(text, chunks)))
    assert min(chunk.tokens for chunk in chunks[:-1]) > 120


@pytest.mark.parametrize("strategy", [recursive, structure])
def test_chunks_of_a_section_begin_with_the_last_sentences_of_the_one_before(
    strategy: Callable[[SizeLimit, int], Chunker],
) -> None:
    text = f"## A\n\n{prose(60)}\n\n## B\n\n{prose(60)}"
    limit = size_limit(128, 128)
    chunks = sound_chunks(strategy, text, MARKDOWN, limit, 20)
    pieces = shared(text, chunks)
    assert pieces.count("") == 1 == sum(chunk.text.startswith("## B") for chunk in chunks)
    for piece in filter(None, pieces):
        assert piece.startswith("Sentence number") and piece.endswith("says this.")
        assert 12 <= count_tokens([piece])[0] <= 20
    assert min(chunk.embedder_tokens for chunk in chunks if len(chunk.text) > 300) > 90


def test_overlap_takes_tables_whole_or_not_at_all() -> None:
    table = "| a | b |\n|---|---|\n" + "\n".join(f"| Row. {row} | Value. |" for row in range(4))
    text = f"{prose(20)}\n\n{table}\n\n{prose(20)}"
    size = count_tokens([table])[0]
    limit = size_limit(4 * size, 1000)
    touching = [
        sum("| Row. 3" in piece for piece in shared(text, sound_chunks(recursive, text, MARKDOWN, limit, overlap)))
        for overlap in range(size // 2, 2 * size, 9)
    ]
    assert touching[0] == 0
    for overlap in range(size // 2, 2 * size, 9):
        for piece in shared(text, sound_chunks(recursive, text, MARKDOWN, limit, overlap)):
            assert "| Row. 3" not in piece or table in piece


def test_a_chunk_keeps_the_heading_path_of_what_is_new_in_it() -> None:
    text = f"# T\n\n## A\n\n{prose(6)}\n\n### Sub\n\n{prose(6)}\n\n## B\n\nEnd."
    chunks = sound_chunks(recursive, text, MARKDOWN, size_limit(1000, 70), 20)
    new = next(chunk for chunk in chunks if "### Sub" in chunk.text)
    assert new.text.startswith("Sentence number")
    assert new.heading_path == ("T", "A", "Sub")


# Fixed -------------------------------------------------------------------------------------------------------------


def test_windows_are_filled_whatever_is_in_them() -> None:
    text = "\n\n".join(f"## Section {number}\n\n```\nx = {number}\n```\n\n| a |\n|---|" for number in range(40))
    chunks = sound_chunks(fixed, text, MARKDOWN, NARROW)
    assert min(chunk.tokens for chunk in chunks[:-1]) > 110
    assert chunks[3].heading_path == (f"Section {text[: chunks[3].start].count('## ') - 1}",)


def test_windows_end_between_words() -> None:
    text = prose(100)
    words = set(text.split())
    assert all(set(chunk.text.split()) <= words for chunk in sound_chunks(fixed, text, PLAIN, TINY, 7))


@pytest.mark.parametrize("character", ["e\u0301", "👨‍👩‍👧‍👦", "🇪🇸", "का", "字"])
def test_windows_tear_no_character_apart(character: str) -> None:
    chunks = sound_chunks(fixed, character * 300, PLAIN, TINY, 9)
    assert len(chunks) > 1
    assert all(chunk.text == character * (len(chunk.text) // len(character)) for chunk in chunks)


# Structure: headings -----------------------------------------------------------------------------------------------


def test_a_section_is_a_chunk() -> None:
    parts = [
        f"# T\n\n{prose(5)}",
        f"## A\n\n{prose(6)}",
        f"### A1\n\n{prose(7)}",
        f"### A2\n\n{prose(8)}",
        "## B\n\nEnd.",
    ]
    chunks = sound_chunks(structure, "\n\n".join(parts), limit=size_limit(512, 120))
    assert texts_of(chunks) == parts
    assert [chunk.heading_path for chunk in chunks] == [
        ("T",),
        ("T", "A"),
        ("T", "A", "A1"),
        ("T", "A", "A2"),
        ("T", "B"),
    ]


def test_small_neighbours_of_one_parent_share_a_chunk() -> None:
    small = [f"### A{number}\n\n{prose(1)}" for number in range(3)]
    large = f"### Large\n\n{prose(8)}"
    text = "\n\n".join([f"## A\n\n{prose(8)}", *small, large, small[0], f"## B\n\n{prose(1)}"])
    assert texts_of(sound_chunks(structure, text, limit=size_limit(512, 64))) == [
        f"## A\n\n{prose(8)}",
        "\n\n".join(small),
        large,
        small[0],
        f"## B\n\n{prose(1)}",
    ]


def test_small_sections_of_different_parents_do_not_share_a_chunk() -> None:
    parents = [f"### P{number}\n\n{prose(9)}\n\n#### Small\n\n{prose(1)}" for number in range(2)]
    text = "\n\n".join(["## A", *parents, "## B\n\nb"])
    chunks = sound_chunks(structure, text, limit=size_limit(512, 64))
    assert [chunk.text.count("#### Small") for chunk in chunks] == [0, 1, 0, 1, 0]


def test_headings_without_content_stay_with_the_next_section() -> None:
    chunks = sound_chunks(structure, f"# T\n\n## A\n\n### A1\n\n{prose(3)}\n\n## B\n\nb")
    assert texts_of(chunks) == [f"# T\n\n## A\n\n### A1\n\n{prose(3)}", "## B\n\nb"]


def test_a_section_that_does_not_fit_is_divided_between_sentences() -> None:
    chunks = sound_chunks(structure, f"## A\n\n{prose(40)}\n\n### Sub\n\n{prose(9)}", limit=NARROW)
    assert len(chunks) > 2
    assert all(chunk.text.endswith("says this.") for chunk in chunks)
    assert chunks[-1].text.startswith("### Sub")


section_bodies = st.lists(contents | st.sampled_from(["### Detalle", "#### Más"]), min_size=1, max_size=5)


@settings(max_examples=30, deadline=None)
@given(
    sections=st.lists(section_bodies, min_size=2, max_size=4),
    data=st.data(),
    limit=st.sampled_from([WIDE, NARROW, TINY]),
    overlap=st.sampled_from([0, 12]),
)
def test_an_edit_changes_only_the_chunks_of_its_section(
    sections: list[list[str]], data: st.DataObject, limit: SizeLimit, overlap: int
) -> None:
    def section_chunks(bodies: list[list[str]]) -> list[list[tuple[str, tuple[str, ...]]]]:
        sources, starts = ["# Manual", "Prefacio."], []
        for number, body in enumerate(bodies):
            starts.append(len("\n\n".join(sources)))
            sources += [f"## Sección {number}", "Texto.", *body]
        found: list[list[tuple[str, tuple[str, ...]]]] = [[] for _ in range(len(bodies) + 1)]
        for chunk in sound_chunks(structure, "\n\n".join(sources), MARKDOWN, limit, overlap):
            found[sum(start <= chunk.start for start in starts)].append((chunk.text, chunk.heading_path))
        return found

    edited = data.draw(st.integers(0, len(sections) - 1))
    position = data.draw(st.integers(0, len(sections[edited])))
    changed = [list(body) for body in sections]
    if data.draw(st.booleans()):
        changed[edited].insert(position, data.draw(paragraphs))
    else:
        del changed[edited][position:]
    before, after = section_chunks(sections), section_chunks(changed)
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        assert number == edited + 1 or old == new


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(5, 40), min_size=2, max_size=6), data=st.data())
def test_an_edit_of_a_subsection_that_is_not_small_leaves_its_neighbours_alone(
    sizes: list[int], data: st.DataObject
) -> None:
    def subsections(counts: list[int]) -> list[str]:
        return [f"### Sub {number}\n\n{prose(count)}" for number, count in enumerate(counts)]

    def chunks_without(text: str, part: str) -> list[str]:
        start, end = text.index(part), text.index(part) + len(part)
        return [c.text for c in sound_chunks(structure, text, limit=NARROW) if c.end <= start or c.start >= end]

    edited = data.draw(st.integers(0, len(sizes) - 1))
    longer = [size + data.draw(st.integers(1, 30)) if n == edited else size for n, size in enumerate(sizes)]
    before, after = ("\n\n".join(["## A", f"{prose(9)}", *subsections(counts)]) for counts in (sizes, longer))
    assert chunks_without(before, subsections(sizes)[edited]) == chunks_without(after, subsections(longer)[edited])


def test_an_edit_of_a_real_document_changes_only_the_chunks_of_its_section(corpora: Path) -> None:
    checked = 0
    for path in sorted((corpora / "fastapi-es/base").rglob("*.md"))[::4]:
        text = path.read_bytes().decode()
        headings = [block for block in markdown_blocks(text) if block.kind == "heading"]
        repeated = [level for level, count in Counter(block.level for block in headings).items() if count > 1]
        starts = [block.start for block in headings if block.level <= min(repeated, default=0)]
        content = [block.start for block in markdown_blocks(text) if block.kind not in NO_CONTENT]
        for number in range(1, len(starts)):
            start, end = starts[number], [*starts, len(text)][number + 1]
            if not any(starts[number - 1] < offset < start for offset in content):
                continue  # headings alone stay with the section below
            added = f"{text[start:end].rstrip()}\n\n{prose(3 + 40 * (number % 2))}\n\n"
            edited = text[:start] + added + text[end:]
            old = structure(NARROW).split(document(text))
            new = structure(NARROW).split(document(edited))
            moved = start + len(added)
            assert [c.text for c in old if c.end <= start] == [c.text for c in new if c.end <= start]
            assert [c.text for c in old if c.start >= end] == [c.text for c in new if c.start >= moved]
            assert all(c.end <= start or c.start >= start for c in new)
            checked += 1
            if number == 2:
                break
    assert checked > 20


# Structure: code ---------------------------------------------------------------------------------------------------

PYTHON = '''"""Billing."""

import os


class Plan(Base):
    """A plan."""

    name = "x"

    # What a seat costs.
    @property
    def price(self):
        total = 0
        for seat in self.seats:
            total += seat.price * self.rate
        return total

    def renew(
        self,
        date: str = """
at the left
""",
    ) -> None:
        self.date = date
        self.log("renewed", date)
        self.save(date, self.name)


@cached(
    size=3,
)
def load(path):
    return Plan(path)
'''

RUST = """//! Plans.
use std::fmt;

/// A plan.
#[derive(Debug)]
pub struct Plan<T> {
    name: T,
}

impl<T: Clone> fmt::Display for Plan<T>
where
    T: fmt::Display,
{
    /// Writes the name and nothing else of the plan, to wherever the formatter says.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", self.name.clone())
    }

    fn price(&self) -> u32 {
        self.seats.iter().map(|seat| seat.price * self.rate).sum()
    }
}
"""

CPP = """#include <vector>

namespace billing {

// A plan.
class EXPORT_API Plan : public Base
{
public:
  int price(int rate,
            int seats) const {
    return rate * seats + rate * seats + rate * seats;
  }

protected:
  void renew(const std::string &date)
  {
    log("renewed", date); save(date, name);
  }
};

} // namespace billing
"""


@pytest.mark.parametrize(
    ("source", "name", "max_tokens", "expected"),
    [
        (
            PYTHON,
            "a.py",
            56,
            [
                ('"""Billing."""', "import os", ()),
                ("class Plan(Base):", 'name = "x"', ()),
                ("# What a seat costs.", "return total", ("Plan",)),
                ("def renew(", "self.save(date, self.name)", ("Plan",)),
                ("@cached(", "return Plan(path)", ()),
            ],
        ),
        (
            RUST,
            "a.rs",
            84,
            [
                ("//! Plans.", "name: T,\n}", ()),
                ("impl<T: Clone>", "self.name.clone())\n    }", ()),
                ("fn price", ".sum()\n    }\n}", ("fmt::Display for Plan",)),
            ],
        ),
        (
            CPP,
            "a.cpp",
            64,
            [
                ("#include <vector>", "#include <vector>", ()),
                ("namespace billing {\n\n// A plan.", "rate * seats;\n  }", ()),
                ("protected:\n  void renew", "} // namespace billing", ("billing", "Plan")),
            ],
        ),
    ],
    ids=["python", "rust", "c++"],
)
def test_code_is_cut_at_definitions(
    source: str, name: str, max_tokens: int, expected: list[tuple[str, str, tuple[str, ...]]]
) -> None:
    limit = size_limit(max_tokens, 1000)
    for path in (name, "note.txt"):
        chunks = structure(limit).split(parse(source.encode(), path))
        assert_sound(source, chunks, limit, 0, SOURCE)
        assert len(chunks) == len(expected)
        for chunk, (start, end, names) in zip(chunks, expected, strict=True):
            assert chunk.text.startswith(start)
            assert chunk.text.endswith(end)
            assert chunk.heading_path == names


def test_a_class_that_fits_stays_whole() -> None:
    chunks = sound_chunks(structure, PYTHON, SOURCE, size_limit(180, 1000))
    [plan] = [chunk for chunk in chunks if "class Plan" in chunk.text]
    assert plan.text.startswith("class Plan") and plan.text.endswith("self.save(date, self.name)")


def test_a_long_function_is_divided_and_its_parts_know_its_name() -> None:
    body = "\n\n".join(f"        value_{number} = self.compute({number})" for number in range(60))
    text = f"class A:\n    x = 1\n\n    def f(self):\n{body}\n\n    def g(self):\n        return 1\n"
    chunks = sound_chunks(structure, text, SOURCE, size_limit(64, 1000))
    assert {chunk.heading_path for chunk in chunks[2:-1]} == {("A", "f")}
    assert chunks[-1].heading_path in {("A",), ("A", "f")}


def test_prose_is_not_taken_for_code(corpora: Path) -> None:
    for folder in ("fastapi-es/base", "mixed-prose/docs", "prose-es/docs"):
        for path in sorted((corpora / folder).rglob("*.md"))[:9]:
            text = "\n".join(line for line in path.read_text().splitlines() if line[:1].isalpha())
            chunks = sound_chunks(structure, text, PLAIN)
            headings = {block.title for block in document_blocks(text, "text/plain") if block.kind == "heading"}
            assert {name for chunk in chunks for name in chunk.heading_path} <= headings
            if not headings:
                assert texts_of(chunks) == texts_of(sound_chunks(recursive, text, PLAIN))


# Structure: HTML ---------------------------------------------------------------------------------------------------


def test_html_is_cut_at_headings() -> None:
    sections = [
        f"<h1>Manual</h1>\n<p>{prose(9)}</p>",
        f"<section>\n<h2 class='x'>Uno &amp; <em>dos</em></h2>\n<p>{prose(9)}</p>\n</section>",
        f"<H2>Tres</H2>\n<p>{prose(9)}</p>\n<!-- <h2>no</h2> --><script>'<h2>no</h2>'</script></body></html>",
    ]
    source = "<!-- made by hand -->\n<!DOCTYPE html>\n<html><body>" + "\n".join(sections)
    for path in ("a.html", "note.txt"):
        chunks = structure(NARROW).split(parse(source.encode(), path))
        assert_sound(source, chunks, NARROW, 0, HTML)
        assert [chunk.heading_path for chunk in chunks] == [
            *((), ("Manual",), ("Manual", "Uno & dos"), ("Manual", "Tres"))[-len(chunks) :]
        ]
        assert chunks[-2].text == sections[1]
        assert chunks[-1].text == sections[2]


@pytest.mark.parametrize(
    "element",
    [
        "<pre>\nfirst.\n\n<h2>second</h2>\n\nthird.\n</pre>",
        "<table><tr><td>\n\na.\n\n<table><tr><td>b.</td></tr></table>\n\nc.</td></tr></table>",
    ],
)
def test_html_tables_and_preformatted_text_stay_whole(element: str) -> None:
    for before in range(6, 30, 2):
        text = f"<h1>T</h1><p>{prose(before)}</p>{element}<p>{prose(3)}</p>"
        assert any(element in chunk for chunk in texts_of(sound_chunks(structure, text, HTML, size_limit(1000, 80))))


def test_an_edit_changes_only_the_chunks_of_its_html_section() -> None:
    def page(count: int) -> str:
        return "".join(f"<h2>S{n}</h2><p>{prose(count if n == 1 else 40)}</p>" for n in range(3))

    before, after = (sound_chunks(structure, page(count), HTML, NARROW) for count in (20, 50))
    for section in ("S0", "S2"):
        old, new = ([c.text for c in chunks if c.heading_path == (section,)] for chunks in (before, after))
        assert old == new and len(old) > 1


# Semantic ----------------------------------------------------------------------------------------------------------


class Recording(HashingEmbedder):
    """Notes what is embedded."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[str]] = []

    def embed_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls.append(list(texts))
        return super().embed_passages(texts)


def talk(topic: str, count: int = 8) -> str:
    return " ".join(f"{topic} {topic} {topic}s {topic}ing." for _ in range(count))


def test_chunks_end_where_the_topic_changes() -> None:
    topics = ["Whale", "Engine", "Violin"]
    text = " ".join(map(talk, topics))
    chunks = SemanticChunker(NARROW, 80, EMBEDDER, "").split(document(text))
    assert len(chunks) >= 3
    crossing = [chunk for chunk in chunks if sum(topic in chunk.text for topic in topics) > 1]
    assert sum(len(chunk.text) for chunk in crossing) < len(text) / 5


def test_a_higher_percentile_cuts_less() -> None:
    text = "\n\n".join(talk(f"Topic{number}", 12) for number in range(60))
    counts = [
        len(SemanticChunker(size_limit(512, 512), percentile, EMBEDDER, "").split(document(text)))
        for percentile in (50, 80, 95)
    ]
    assert counts[0] > counts[1] > counts[2] > 1


def test_a_document_is_embedded_in_one_call_of_windows_that_fit() -> None:
    embedder = Recording()
    SemanticChunker(NARROW, 90, embedder, "").split(document(f"# T\n\n{prose(300)}\n\n```\n{'x = 1 ' * 25}\n```"))
    [windows] = embedder.calls
    assert len(windows) > 290
    assert max(count_tokens(windows)) <= NARROW.max_tokens
    assert max(window.count("says this.") for window in windows) == 3


@pytest.mark.parametrize("text", ["", "   ", "One sentence.", "# Only a heading", "```\ncode\n```"])
def test_nothing_is_embedded_for_a_single_sentence(text: str) -> None:
    embedder = Recording()
    chunks = SemanticChunker(WIDE, 90, embedder, "").split(document(text))
    assert texts_of(chunks) == ([text] if text.strip() else [])
    assert embedder.calls == []


def test_a_heading_stays_with_what_follows_it() -> None:
    text = "\n\n".join(f"## {topic}\n\n{talk(topic, 4)}" for topic in ("Whale", "Engine", "Violin", "Bread"))
    chunks = sound_chunks(semantic, text, limit=NARROW)
    assert len(chunks) > 1
    assert not [chunk for chunk in chunks if chunk.text.rpartition("\n")[2].startswith("##")]
    assert chunks[0].heading_path == ("Whale",)


def test_tiny_groups_are_merged() -> None:
    chunks = sound_chunks(semantic, "\n\n".join(f"Word{number}." for number in range(100)), limit=NARROW)
    assert len(chunks) < 12  # of 30 groups
