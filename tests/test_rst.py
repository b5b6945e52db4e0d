"""reStructuredText: sections by their adornments, blocks that stay whole, and source that is kept as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_pipeline.chunking.recursive import RecursiveChunker
from ctx_pipeline.documents.blocks import Block
from ctx_pipeline.documents.parse import parse
from ctx_pipeline.documents.rst import rst_blocks
from ctx_pipeline.documents.rst_inline import plain_title
from tests.markdown_documents import size_limit
from tests.test_markdown import assert_covers

PREFIXES = ["", "", "", " ", "   ", "\t", "- ", "1. ", ".. ", "| "]
CONTENTS = [
    *("A title", "text", "ends so::", "", "", "=====", "-----", "==", "::", "====  ====", "+---+---+", "| a | b |"),
    *("a     b", "note::", "_target:", "code-block:: python", "comment", "[1] foot", "__", ">>> 1", ":field: value"),
    *(":orphan:", "1. Title", "- item", "`x`_", "\x0c", "\u2028", "|s| image:: a.png", "*", "é"),
]
rst_texts = st.lists(
    st.tuples(
        st.lists(st.sampled_from(PREFIXES), max_size=3).map("".join),
        st.sampled_from(CONTENTS),
        st.sampled_from(["\n", "\n", "\n\n", "\r\n", "\r"]),
    ).map("".join),
    max_size=30,
).map("".join)


def headings(text: str) -> list[tuple[int, str]]:
    return [(block.level, block.title) for block in rst_blocks(text) if block.kind == "heading"]


def kinds(text: str) -> list[str]:
    return [block.kind for block in rst_blocks(text)]


def sources(text: str, kind: str) -> list[str]:
    return [text[block.start : block.end] for block in every(rst_blocks(text)) if block.kind == kind]


def every(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        yield from every(block.children)


@settings(max_examples=400, deadline=None)
@given(rst_texts)
def test_blocks_cover_the_text_at_every_depth(text: str) -> None:
    blocks = rst_blocks(text)
    assert_covers(text, blocks, 0, len(text))
    assert all(1 <= block.level <= 6 and block.title for block in blocks if block.kind == "heading")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_covered(text: str) -> None:
    assert_covers(text, rst_blocks(text), 0, len(text))


def test_levels_follow_the_order_in_which_adornments_are_used() -> None:
    text = "====\nTop\n====\n\nOne\n===\n\nDeep\n----\n\nTwo\n===\n\nDeepest\n~~~~~~~\n\nText.\n"
    assert headings(text) == [(1, "Top"), (2, "One"), (3, "Deep"), (2, "Two"), (4, "Deepest")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A long title\n====\n\ntext\n", ["A long title"]),  # too short, but unmistakable
        ("A long title\n===\n\ntext\n", []),
        ("Abc\n===\n", ["Abc"]),
        ("中文标题\n========\n", ["中文标题"]),
        ("two lines\nof text\n=======\n", []),
        ("before\n\n-----\n\nafter\n", []),  # a transition
        ("==== ====\na    b\n==== ====\n1    2\n==== ====\n", []),
        ("+----+\n| ab |\n+----+\n", []),
        ("- item\n======\n", []),
        ("1. Scope\n========\n", ["1. Scope"]),
        ("1. one\n2. two\n======\n", ["2. two"]),
        ("::\n\n  Shown\n  =====\n", []),
        (".. code-block:: rst\n\n   Shown\n   =====\n\ntext\n", []),
        ("  Quoted\n  ======\n", []),
        (".. comment\n\nTitle\n-----\n", ["Title"]),
        ("Title\r\n-----\r\nText\r\n", ["Title"]),
    ],
)
def test_what_is_a_section(text: str, found: list[str]) -> None:
    assert [title for _, title in headings(text)] == found


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("The ``run()`` call", "The run() call"),
        (":ref:`Install it <install>` first", "Install it first"),
        (":py:meth:`~app.Client.send`", "send"),
        (":class:`!Hidden`", "Hidden"),
        ("*New* in **2.0** |version|", "New in 2.0 version"),
        ("See `the guide`_ and `site <https://a.example>`__ or this_", "See the guide and site or this"),
        ("Claim [1]_ proved", "Claim proved"),
        (r"The \*args and snake_case_name", "The *args and snake_case_name"),
        ("2 * 3 * 4", "2 * 3 * 4"),
        ("`" * 2_000, ("`" * 2_000)[:1_000]),
    ],
)
def test_titles_are_plain_text(source: str, title: str) -> None:
    assert plain_title(source) == title


def test_directives_have_their_bodies_and_literal_blocks_are_whole() -> None:
    text = (
        "As follows::\n\n    one\n\n    two\n\n.. warning:: Hot\n   water\n\n   * a list\n\n     .. code-block:: sh\n\n"
        "        run\n\n        again\n\n>>> 1 + 1\n2\n\n.. include:: /etc/hosts\n\nterm\n  Its meaning.\n"
    )
    assert kinds(text) == ["paragraph", "code", "quote", "code", "paragraph", "item"]
    assert sources(text, "code") == [
        "one\n\n    two",
        ".. code-block:: sh\n\n        run\n\n        again",
        ">>> 1 + 1\n2",
    ]
    assert sources(text, "quote")[0].startswith(".. warning:: Hot\n   water")
    assert text[rst_blocks(text)[4].start :].startswith(".. include:: /etc/hosts\n")  # never followed


def test_comments_and_file_settings_are_skipped_and_targets_stay_with_what_they_name() -> None:
    text = (
        ":orphan:\n\n.. a note to\n   the authors\n\n.. _seals:\n.. index:: seal\n\nSeals\n=====\n\n.. _pic:\n\nText.\n"
    )
    assert kinds(text) == ["skipped", "skipped", "heading", "paragraph"]
    heading = rst_blocks(text)[2]
    assert text[heading.start : heading.end] == ".. _seals:\n.. index:: seal\n\nSeals\n====="


def test_chunks_have_the_titles_above_them_and_no_comments_at_their_edges() -> None:
    body = "Grease the bearing each quarter, and note the date in the book. " * 4
    text = f".. Free\n\nPump care\n=========\n\nGreasing\n--------\n\n{body}\n\nSeals\n-----\n\n{body}\n\n.. end\n"
    parsed = parse(text.encode(), "pumps.rst")
    assert (parsed.media_type, parsed.title) == ("text/x-rst", "Pump care")
    chunks = RecursiveChunker(size_limit(100, 100), 0, "").split(parsed)
    assert [chunk.heading_path for chunk in chunks] == [("Pump care", "Greasing"), ("Pump care", "Seals")]
    assert chunks[0].text.startswith("Pump care\n")
    assert chunks[-1].text.endswith("book.")


def test_a_file_with_two_titles_or_none_near_its_beginning_is_named_by_its_file() -> None:
    assert parse(b"One\n===\n\nTwo\n===\n\ntext\n", "a/notes.rest").title == "notes"
    assert parse(b"text\n\n" * 600 + b"Late\n====\n", "late.rst").title == "late"


@pytest.mark.parametrize(
    "table",
    [
        "+------+-------+\n| Plan | Limit |\n+======+=======+\n"
        + "".join(f"| p{n}   | a     |\n|      | b {n}   |\n+------+-------+\n" for n in range(30)),
        "====  =====\nPlan  Limit\n====  =====\n"
        + "".join(f"p{n}    a\n      b {n}\n" for n in range(30))
        + "====  =====\n",
    ],
    ids=["grid", "simple"],
)
def test_tables_are_cut_between_rows_that_may_have_several_lines(table: str) -> None:
    assert kinds(table) == ["table"]
    whole = RecursiveChunker(size_limit(5_000, 5_000), 0, "").split(parse(table.encode(), "a.rst"))
    assert len(whole) == 1
    chunks = RecursiveChunker(size_limit(120, 120), 0, "").split(parse(table.encode(), "a.rst"))
    assert len(chunks) > 2
    assert "Limit" in chunks[0].text and "p0" in chunks[0].text
    for chunk in chunks[1:]:
        assert chunk.text.lstrip("| ").startswith("p")


@pytest.mark.parametrize(
    "text",
    [
        "=" * 300_000,
        "ab\n==\n" * 20_000,
        "== ==\nx y\n" * 20_000,
        "== ==\n" * 30_000,
        "".join(" " * depth + "x\n" for depth in range(800)),
        "".join("  " * depth + "- x\n" for depth in range(800)),
        "".join("   " * depth + ".. note::\n\n" for depth in range(600)),
        "  x\n y\n" * 20_000,
        ":a" * 200_000,
        "`" * 300_000 + "\n" + "=" * 300_000,
        "\n" * 300_000,
        "\x0c" * 300_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_hostile_text_is_covered(text: str) -> None:
    assert_covers(text, rst_blocks(text), 0, len(text))
