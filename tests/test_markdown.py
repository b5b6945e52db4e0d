"""Blocks must cover the untouched text, whatever its newlines and markup; titles are what a reader sees."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_pipeline.documents.blocks import Block, line_starts
from ctx_pipeline.documents.markdown import markdown_blocks
from ctx_pipeline.documents.plain_text import plain_blocks

PREFIXES = ["", "", "", "> ", ">", "- ", "* ", "1. ", "  ", "    ", "\t", "   > ", "- > ", "> - "]
CONTENTS = [
    *("", "", "text", "two words.", "# Title", "## Sub #", "#", "```", "```py", "~~~", "| a | b |", "|---|---|"),
    *("---", "===", "***", "<div>", "</div>", "<!-- c", "-->", "[a]: b", "[a]"),
    *("\x0c", "a\u2028b", "\x00", "\x85", "\xa0", "\ufeff", "é"),
]
NEWLINES = ["\n", "\n", "\n", "\r\n", "\r"]

lines = st.lists(
    st.tuples(
        st.lists(st.sampled_from(PREFIXES), max_size=4).map("".join),
        st.sampled_from(CONTENTS),
        st.sampled_from(NEWLINES),
    ).map("".join),
    max_size=25,
)
markdown_texts = st.tuples(st.sampled_from(["", "", "---\na: b\n---\n", "---\n", "\ufeff"]), lines.map("".join)).map(
    "".join
)


def outline(blocks: Iterable[Block]) -> list[object]:
    return [(block.kind, outline(block.children)) if block.children else block.kind for block in blocks]


def texts(text: str, blocks: Iterable[Block]) -> list[str]:
    return [text[block.start : block.end] for block in blocks]


def headings(text: str) -> list[tuple[int, str]]:
    return [(block.level, block.title) for block in markdown_blocks(text) if block.kind == "heading"]


def assert_covers(text: str, blocks: Sequence[Block], start: int, end: int) -> None:
    position = start
    for block in blocks:
        assert position <= block.start < block.end <= end
        assert not text[position : block.start].strip()
        assert text[block.start : block.end] == text[block.start : block.end].strip()
        if block.children:
            assert (block.children[0].start, block.children[-1].end) == (block.start, block.end)
            assert_covers(text, block.children, block.start, block.end)
        position = block.end
    assert not text[position:end].strip()


@settings(max_examples=400, deadline=None)
@given(text=markdown_texts)
def test_blocks_cover_the_text_at_every_depth(text: str) -> None:
    assert_covers(text, markdown_blocks(text), 0, len(text))


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_any_text_is_covered(text: str) -> None:
    assert_covers(text, markdown_blocks(text), 0, len(text))
    assert_covers(text, plain_blocks(text), 0, len(text))


@settings(max_examples=200, deadline=None)
@given(text=lines.map("".join))
def test_structure_does_not_depend_on_the_kind_of_newline(text: str) -> None:
    unix = re.sub(r"\r\n?", "\n", text)
    windows = unix.replace("\n", "\r\n")
    assert outline(markdown_blocks(windows)) == outline(markdown_blocks(unix)) == outline(markdown_blocks(text))
    assert texts(windows, markdown_blocks(windows)) == [
        block.replace("\n", "\r\n") for block in texts(unix, markdown_blocks(unix))
    ]
    assert headings(windows) == headings(unix) == headings(text)


@settings(max_examples=200, deadline=None)
@given(text=lines.map("".join))
def test_line_starts_follow_newlines_only(text: str) -> None:
    starts = [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", text))]
    assert line_starts(text) == starts


def test_blocks_of_a_document() -> None:
    text = (
        "# Title\n\nOne\ntwo.\n\n- a\n\n  ```py\n  # not a heading\n\n  x\n  ```\n- b\n\n| h |\n|---|\n| 1 |\n\n"
        "> quote\n>\n> # inside\n\n    code\n\n<div>\n# html\n</div>\n\n***\nEnd\n"
    )
    blocks = markdown_blocks(text)
    assert outline(blocks) == [
        "heading",
        "paragraph",
        ("list", [("item", ["paragraph", "fence"]), ("item", ["paragraph"])]),
        "table",
        ("quote", ["paragraph", "heading"]),
        "code",
        "html",
        "rule",
        "paragraph",
    ]
    assert texts(text, blocks)[1] == "One\ntwo."
    assert texts(text, blocks[2].children[0].children) == ["- a", "```py\n  # not a heading\n\n  x\n  ```"]
    assert texts(text, blocks[4].children) == ["> quote\n>", "> # inside"]


def test_only_newlines_end_a_line() -> None:
    text = "one\u2028# no\x0c# no\x85# no\x0b\n# Yes\r# Also\r\n## Sub"
    assert headings(text) == [(1, "Yes"), (1, "Also"), (2, "Sub")]


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("# Plain  title ##", "Plain title"),
        ("# Use `read_file()` *and* **more**", "Use read_file() and more"),
        ("# See [the guide](https://example.org/a_b) or ![a *logo*](x.png)", "See the guide or a logo"),
        ("# Parámetros de Query { #query-parameters }", "Parámetros de Query"),
        ("# Styled {#id .wide key=value}", "Styled"),
        ('# Kramdown {: .no_toc title="a b"}', "Kramdown"),
        ("# Path `{item_id}`", "Path {item_id}"),
        ("# Path {item_id}", "Path {item_id}"),
        ("# {#only-an-id}", ""),
        ('# <a id="x"></a>Anchor &amp; ~~old~~ \\*star\\*', "Anchor & old *star*"),
        ("# snake_case_name and 2 * 3 * 4", "snake_case_name and 2 * 3 * 4"),
        ("# Array[int][0]", "Array[int][0]"),
        ("Setext\ntitle\n===", "Setext title"),
        ("# " + "word " * 100, ("word " * 40).strip()),
        ("#", ""),
    ],
)
def test_titles_are_plain_text(source: str, title: str) -> None:
    assert headings(f"{source}\n\ntext\n") == [(1, title)]


def test_reference_links_in_titles_need_their_definition() -> None:
    text = (
        "## [1.2.0] - 2024\n\n## [Guide][g]\n\n## [Unknown]\n\n[1.2.0]: https://example.org\n[G]: https://example.org\n"
    )
    assert [title for _, title in headings(text)] == ["1.2.0 - 2024", "Guide", "[Unknown]"]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_front_matter_is_one_block_and_a_mapping(newline: str) -> None:
    text = newline.join(["---", "title: A guide", "tags: [a, b]", "1: one", "---", "# Title", "", "text"])
    assert front_matter(text) == {"title": "A guide", "tags": ["a", "b"], "1": "one"}
    assert outline(markdown_blocks(text)) == ["front_matter", "heading", "paragraph"]
    assert headings(text) == [(1, "Title")]
    assert front_matter("\ufeff" + text) == front_matter(text)
    assert headings("\ufeff" + text) == [(1, "Title")]


def test_byte_order_mark_does_not_hide_a_heading() -> None:
    assert headings("\ufeff# Title\n") == [(1, "Title")]


@pytest.mark.parametrize(
    "matter",
    [
        "a: [1",
        "a: b: c",
        "- a: b",
        "just text",
        "a: &x [1]\nb: *x",
        "a: " + "[" * 5_000,
        "a: 2024-13-45",
        "a: !!bool maybe",
        "a: !!python/object:os.system x",
        "a: " + "1" * 10_000,
        "a: \x00",
        "a: 1\n? [b]\n: c",
    ],
)
def test_unusable_front_matter_is_empty(matter: str) -> None:
    text = f"---\n{matter}\n---\n\n# Title\n"
    assert front_matter(text) == {}
    assert headings(text)[-1:] == [(1, "Title")]


def test_front_matter_is_read_up_to_its_limit() -> None:
    def document(size: int) -> str:
        return "---\na: '" + "x" * (size - 14) + "'\n---\n"

    assert len(document(60_000)) == 60_000
    assert list(front_matter(document(60_000))) == ["a"]
    assert front_matter(document(70_000)) == {}


def test_thematic_breaks_at_the_top_are_not_front_matter() -> None:
    text = "---\n\n# Title\n\nSome text\n\n---\n\nMore\n"
    assert front_matter(text) == {}
    assert headings(text) == [(1, "Title")]


def test_plain_text_has_paragraphs_and_no_headings() -> None:
    text = "# not a heading\nline\n \t\n\n- a\r\n\r\nlast\r\rend\u2028same\n"
    blocks = plain_blocks(text)
    assert texts(text, blocks) == ["# not a heading\nline", "- a", "last", "end\u2028same"]
    assert {block.kind for block in blocks} == {"paragraph"}
    assert plain_blocks(" \n\t\n") == []


def test_a_document_after_deep_nesting_keeps_its_structure() -> None:
    for nested in (">" * 300 + " a", "".join("  " * depth + "- a\n" for depth in range(300))):
        text = f"{nested}\n\n# After\n\ntext\n"
        assert headings(text) == [(1, "After")]
        assert_covers(text, markdown_blocks(text), 0, len(text))


@pytest.mark.parametrize(
    "text",
    [
        ">" * 1_000_000,
        "[" * 1_000_000,
        "- " * 100_000,
        "#" * 1_000_000,
        "\x00" * 1_000_000,
        "\u2028" * 1_000_000,
        "\x0c" * 1_000_000,
        "word " * 1_000_000,
        "# " + "[" * 1_000_000,
        "> " * 30 + "a\n" + "b\n" * 1_000,
        "| a | b |\n" * 10_000,
        "| a | b |\n|---|---|\n" + "| a | b |\n" * 5_000,
        "[a]: b\n" * 20_000,
        "#\n" * 10_000,
        "- a\n" * 10_000,
        "<!--\n\n" * 20_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_hostile_text_is_covered(text: str) -> None:
    assert_covers(text, markdown_blocks(text), 0, len(text))


def test_blocks_of_real_documents(corpora: Path) -> None:
    paths = sorted((corpora / "fastapi-es" / "base").rglob("*.md"))
    for path in paths:
        text = path.read_bytes().decode()
        assert_covers(text, markdown_blocks(text), 0, len(text))
        assert "{" not in headings(text)[0][1]
    assert len(paths) == 115
