"""Outline contexts: title and headings, never the title twice, never more than the room that a chunk leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.contexts.model import Context
from ctx_pipeline.contexts.outline import NoContextualizer, OutlineContextualizer
from ctx_pipeline.documents.model import Document, Parsed
from ctx_pipeline.documents.titles import title_from_path

Count = Callable[[Sequence[str]], list[int]]
COUNTERS: dict[str, Count] = {
    "words": lambda texts: [len(text.split()) for text in texts],
    "characters": lambda texts: [len(text) for text in texts],
    "bytes": lambda texts: [len(text.encode()) for text in texts],
}


def document(
    title: str, doc_id: str = "docs/planes/límites-de_uso.v2.md", text: str = "", media_type: str = "text/markdown"
) -> Document:
    parsed = Parsed(text=text, media_type=media_type, title=title, language="es")
    return Document(doc_id, "file:///x", 0, 0, 0, "", parsed)


def chunk(*headings: str) -> Chunk:
    return Chunk(start=0, end=4, line=1, text="text", heading_path=headings, tokens=1, embedder_tokens=1)


def contexts(
    title: str, *paths: Sequence[str], max_tokens: int = 100, count: Count = COUNTERS["words"]
) -> list[Context]:
    writer = OutlineContextualizer(max_tokens, count, "test")
    [result] = writer.write([(document(title), [chunk(*path) for path in paths])])
    assert not isinstance(result, Exception)
    return result.contexts


@pytest.mark.parametrize(
    ("title", "headings", "expected"),
    [
        ("Límites", (), "Límites"),
        ("Límites", ("Plan Pro",), "Límites › Plan Pro"),
        ("Límites", ("Planes", "Plan Pro", "API"), "Límites › Planes › Plan Pro › API"),
        ("Límites", ("Límites", "Plan Pro"), "Límites › Plan Pro"),
        ("Límites", ("LÍMITES", "Plan Pro"), "Límites › Plan Pro"),
        ("Límites", ("Límites",), "Límites"),
        ("Límites", ("Planes", "Límites"), "Límites › Planes › Límites"),
        ("Straße", ("STRASSE", "Nord"), "Straße › Nord"),
    ],
)
def test_a_context_is_the_title_and_the_headings_without_repeating_the_title(
    title: str, headings: tuple[str, ...], expected: str
) -> None:
    [context] = contexts(title, headings)
    assert context.text == expected
    assert (context.method, context.status, context.reason, context.memo_key) == ("outline", "written", "", "")


def test_a_path_that_is_too_long_loses_its_middle_first() -> None:
    path = ("one", "two", "three", "four five six")
    assert contexts("Title", path, max_tokens=11)[0].text == "Title › one › two › three › four five six"
    assert contexts("Title", path, max_tokens=10)[0].text == "Title › … › three › four five six"
    assert contexts("Title", path, max_tokens=8)[0].text == "Title › … › four five six"
    assert contexts("Title", path, max_tokens=6)[0].text == "Title › four five six"
    assert contexts("Title", path, max_tokens=4)[0].text == "Title › four"


@settings(deadline=None)
@given(
    title=st.text(min_size=1, max_size=200),
    headings=st.lists(st.text(max_size=200), max_size=6),
    max_tokens=st.integers(1, 130),
    counter=st.sampled_from(sorted(COUNTERS)),
)
def test_no_context_is_longer_than_its_room(title: str, headings: list[str], max_tokens: int, counter: str) -> None:
    count = COUNTERS[counter]
    [context] = contexts(title, headings, max_tokens=max_tokens, count=count)
    assert count([context.text])[0] <= max_tokens


@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize(
    "text",
    [
        "word " * 40,
        "w" * 200,
        "界" * 200,
        "🦉" * 200,
        "\u0301" * 200,
        "<|endoftext|>" * 15,
        "a\u00a0b" * 60,
        "› " * 100,
    ],
    ids=["words", "one word", "Chinese", "owls", "accents", "endoftext", "no-break spaces", "separators"],
)
def test_hostile_headings_do_not_break_the_limit(counter: str, text: str) -> None:
    count = COUNTERS[counter]
    for title, headings in ((text, ()), ("Title", (text,)), (text, (text, text[::-1], text)), ("Title", (text,) * 6)):
        [context] = contexts(title, headings, max_tokens=64, count=count)
        assert count([context.text])[0] <= 64


@pytest.mark.parametrize("counter", ["characters", "bytes"])
@pytest.mark.parametrize(
    "text", ["w" * 200, "界" * 200, "<|endoftext|>" * 15], ids=["one word", "Chinese", "endoftext"]
)
def test_the_beginning_of_a_long_text_without_spaces_stays(counter: str, text: str) -> None:
    [alone] = contexts(text, (), max_tokens=120, count=COUNTERS[counter])
    [below] = contexts("Title", (text,), max_tokens=120, count=COUNTERS[counter])
    assert len(alone.text) >= 20
    assert text.startswith(alone.text)
    assert below.text.startswith(f"Title › {text[:10]}")


def test_every_chunk_has_its_own_context_and_documents_do_not_mix() -> None:
    writer = OutlineContextualizer(100, COUNTERS["words"], "test")
    results = writer.write(
        [(document("One"), [chunk("A"), chunk("B"), chunk("A")]), (document("Two"), []), (document("Three"), [chunk()])]
    )
    assert [[c.text for c in result.contexts] for result in results if not isinstance(result, Exception)] == [
        ["One › A", "One › B", "One › A"],
        [],
        ["Three"],
    ]


def test_tokens_are_counted_once_for_all_chunks_of_a_batch() -> None:
    calls: list[int] = []

    def count(texts: Sequence[str]) -> list[int]:
        calls.append(len(texts))
        return [1 for _ in texts]

    OutlineContextualizer(100, count, "test").write([(document(f"T{n}"), [chunk("A"), chunk("A")]) for n in range(50)])
    assert calls == [50]


@pytest.mark.parametrize(
    ("doc_id", "words"),
    [
        ("docs/planes/límites-de_uso.md", "planes límites de uso"),
        ("wiki/a.md", "a"),
        ("docs/v1.2/notes.v1.2.txt", "v1 2 notes v1 2"),
        ("docs/new\nline, 100%.md", "new line 100"),
        ("docs/....md", ""),
        ("docs/...", ""),
        ("docs/.hidden", "hidden"),
        ("docs/README", "README"),
    ],
)
def test_the_keyword_leg_also_gets_the_words_of_the_path_below_the_source(doc_id: str, words: str) -> None:
    [[context]] = [
        result.contexts
        for result in OutlineContextualizer(100, COUNTERS["words"], "test").write([(document("T", doc_id), [chunk()])])
        if not isinstance(result, Exception)
    ]
    assert context.keywords == words
    assert context.text == "T"


CODE = """\
import os.path

class Ledger:
    def read(self):
        return self.rows

    def write(self, row):
        self.rows.append(row)


class Report:
    def total(self):
        return 0
"""


def contexts_of_code(text: str, *begins: str, doc_id: str = "docs/src/ledger_file.txt") -> list[Context]:
    """Contexts of chunks that begin where `begins` say and reach to the next one."""
    starts = [text.index(begin) for begin in begins]
    chunks = [
        Chunk(start, end, 1, text[start:end], (), 1, 1)
        for start, end in zip(starts, [*starts[1:], len(text)], strict=True)
    ]
    parsed = document(title_from_path(doc_id.partition("/")[2]), doc_id, text, "text/plain")
    [result] = OutlineContextualizer(100, COUNTERS["words"], "test").write([(parsed, chunks)])
    assert not isinstance(result, Exception)
    return result.contexts


def test_a_chunk_of_code_is_situated_by_the_definitions_around_it() -> None:
    written = contexts_of_code(CODE, "import", "\n    def write", "        self.rows.append", "        return 0")
    assert [context.text for context in written] == [
        "ledger file",
        "ledger file › Ledger",
        "ledger file › Ledger › write",
        "ledger file › Report › total",
    ]


def test_keywords_tell_what_the_file_and_the_chunk_define() -> None:
    first, second = contexts_of_code(CODE, "import", "class Report")
    shared = "src ledger file\nLedger read write Report total\nimport os.path"
    assert first.keywords == f"{shared}\nLedger read write"
    assert second.keywords == f"{shared}\nReport total"


def test_an_edit_elsewhere_in_a_file_leaves_the_embedded_context_of_a_chunk() -> None:
    edited = CODE.replace("    def read", "    def added(self):\n        pass\n\n    def read").replace(
        "os.path", "json"
    )
    before, after = (contexts_of_code(text, "class Ledger", "    def total")[1] for text in (CODE, edited))
    assert after.text == before.text == "ledger file › Report"
    assert after.keywords != before.keywords


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("doc_12.txt", ""),
        ("Document (3).txt", ""),
        ("2024-01-31.txt", ""),
        ("notes.txt", ""),
        ("AMCOR_2022_10K.txt", "AMCOR 2022 10K"),
        ("state of the union.txt", "state of the union"),
    ],
)
def test_a_file_name_that_says_little_is_not_put_before_every_chunk(name: str, text: str) -> None:
    [context] = contexts_of_code("Words.", "Words", doc_id=f"docs/{name}")
    assert context.text == text


def test_a_title_from_a_heading_far_below_says_nothing_of_what_precedes_it() -> None:
    below = replace(chunk("Figure 1", "Detail"), start=9_000, end=9_004)
    [[before, after]] = [
        result.contexts
        for result in OutlineContextualizer(100, COUNTERS["words"], "test").write(
            [(document("Figure 1"), [chunk(), below])]
        )
        if not isinstance(result, Exception)
    ]
    assert (before.text, after.text) == ("", "Figure 1 › Detail")


@pytest.mark.parametrize("text", ["class A: " * 100_000, "def f():\n" * 50_000], ids=["one line", "many lines"])
def test_keywords_of_a_huge_file_stay_short(text: str) -> None:
    chunks = [Chunk(start, start + 9, 1, text[start : start + 9], (), 1, 1) for start in range(0, len(text), 900)]
    huge = document("T", "docs/t.txt", text, "text/plain")
    [result] = OutlineContextualizer(100, COUNTERS["words"], "test").write([(huge, chunks)])
    assert not isinstance(result, Exception)
    assert all(len(context.keywords) < 2_500 for context in result.contexts)


def test_what_changes_a_context_changes_the_fingerprint() -> None:
    base = OutlineContextualizer(100, COUNTERS["words"], "test").fingerprint
    assert OutlineContextualizer(100, COUNTERS["words"], "test").fingerprint == base
    assert OutlineContextualizer(101, COUNTERS["words"], "test").fingerprint != base
    assert OutlineContextualizer(100, COUNTERS["words"], "other").fingerprint != base
    assert NoContextualizer().fingerprint != base


def test_no_contextualizer_leaves_every_chunk_as_it_is() -> None:
    [result] = NoContextualizer().write([(document("T"), [chunk("A"), chunk("B")])])
    assert not isinstance(result, Exception)
    assert [(c.text, c.keywords, c.status) for c in result.contexts] == [("", "", "written")] * 2
