"""Plain text: headings that only their shape and place tell, pages, and what must not be taken for a heading."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_pipeline.chunking.fixed import FixedChunker
from ctx_pipeline.chunking.recursive import RecursiveChunker, split
from ctx_pipeline.display import chunk_blocks, hits_table
from ctx_pipeline.documents.parse import parse
from ctx_pipeline.documents.plain_text import plain_blocks
from ctx_pipeline.index.search import Hit
from ctx_pipeline.terminal import show
from tests.markdown_documents import size_limit
from tests.test_markdown import assert_covers

PROSE = (
    "The supplier delivers the pumps within thirty days, and the customer pays within sixty days after that. "
    "Whatever is late bears interest at the legal rate.\n\n"
)
WRAPPED = (
    "The supplier delivers the pumps within thirty days and the customer\n"
    "pays within sixty days after that, at the\nlegal rate.\n\n"
)

LINES = [
    *(
        "1. SCOPE",
        "2. Terms",
        "1.1 Of the pumps",
        "ALL CAPITALS",
        "Short title",
        "Item 7.",
        "Note 12",
        "====",
        "----",
        "",
    ),
    *(
        "A sentence that is long enough to be one, with a comma and a full stop at its very end, and more words.",
        "x",
        "|",
    ),
    *(
        "[10:00] Ana: hello",
        "Bo: no",
        "12",
        "\x0c",
        "\x0cPage",
        "    indented",
        "a,b,c",
        "int main() {",
        "\u2028",
        "3.",
    ),
]
plain_texts = st.lists(
    st.tuples(st.sampled_from(LINES), st.sampled_from(["\n", "\n", "\n\n", "\r\n", "\r"])).map("".join), max_size=40
).map("".join)


def headings(text: str) -> list[tuple[int, str]]:
    return [(block.level, block.title) for block in plain_blocks(text) if block.kind == "heading"]


def titles(text: str) -> list[str]:
    return [title for _, title in headings(text)]


@settings(max_examples=400, deadline=None)
@given(plain_texts)
def test_blocks_cover_the_text(text: str) -> None:
    blocks = plain_blocks(text)
    assert_covers(text, blocks, 0, len(text))
    assert all(1 <= block.level <= 6 and block.title for block in blocks if block.kind == "heading")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_covered(text: str) -> None:
    assert_covers(text, plain_blocks(text), 0, len(text))


@pytest.mark.parametrize(
    "line",
    [
        *(
            "2. CONFIDENTIALITY",
            "IV. REMEDIES",
            "RISK FACTORS",
            "Item 7. Management's discussion",
            "ITEM 7A. MARKET RISK",
        ),
        *("Note 12", "ARTICLE IV", "Schedule A", "Chapter 2", "Anexo II", "Artículo 5. Objeto", "Capítulo primero"),
        *("Section 3: Payment", "1.2. Terms of payment", "Delivery and payment", "Delivery\n========"),
    ],
)
def test_lines_that_stand_alone_above_text_are_headings(line: str) -> None:
    text = f"{PROSE}{line}\n\n{PROSE}"
    title = line.partition("\n")[0]
    # A lone short line is one only in company.
    assert titles(f"{text}More of it\n\n{PROSE}" if line == "Delivery and payment" else text)[:1] == [title]


@pytest.mark.parametrize(
    "text",
    [
        f"{PROSE}1. Buy milk\n2. Buy bread\n\n{PROSE}",
        f"{PROSE}1. Buy milk\n\n2. Buy bread\n\n3. Call home\n\n{PROSE}",
        f"{PROSE}2. The customer pays what the list says.\n\n{PROSE}",
        f"{PROSE}12\n\n{PROSE}",
        f"{PROSE}Page 3 of 12\n\n{PROSE}",
        f"{PROSE}3 May 2024\n\n{PROSE}",
        f"{PROSE}Dear Ana\n\n{PROSE}",
        f"{PROSE}Copyright 2020 The Authors\n\n{PROSE}",
        f"{PROSE}CHAPTER 1 ........ 3\n\nCHAPTER 2 ........ 9\n\n{PROSE}",
        f"{PROSE}Item 1. Business      3\n\n{PROSE}",
        f"{PROSE}NAME        PRICE\n\n{PROSE}",
        f"{PROSE}Yours sincerely\n\nANA LIND\n",
        f"{PROSE}as set out in\n\nSchedule A of this contract and elsewhere\n\n{PROSE}",
        "Two roads\n\nI saw them\n\nand took one\n\nof the two\n",
        "Main street 4\n\nBerlin\n\nGermany\n\n" + PROSE,
        f"{PROSE}What did they say?\n\n{PROSE}",
        f"{PROSE}" + f"Refrain of it\n\n{PROSE}" * 3,
        "SET_OF_FLAGS = 4\n\nint main(void) {\n  return RUN;\n}\n\nMAIN ENTRY\n\nint f(int a);\n",
    ],
)
def test_what_is_no_heading(text: str) -> None:
    assert headings(text) == []


def test_levels_follow_kind_and_depth() -> None:
    text = "".join(
        f"{line}\n\n{PROSE}"
        for line in ("PART I", "Item 1. Business", "1. OVERVIEW", "1.1 Markets", "2. STAFF", "Item 2. Properties")
    )
    assert headings(text) == [
        (1, "PART I"),
        (2, "Item 1. Business"),
        (3, "1. OVERVIEW"),
        (4, "1.1 Markets"),
        (3, "2. STAFF"),
        (2, "Item 2. Properties"),
    ]


def test_a_heading_begins_the_chunk_of_what_it_heads() -> None:
    text = f"1. DEFINITIONS\n\n1.1 {PROSE * 2}2. CONFIDENTIALITY\n\n2.1 {PROSE * 2}"
    chunks = split(text, markdown=False, limit=size_limit(60, 60))
    [first] = [chunk for chunk in chunks if "CONFIDENTIALITY" in chunk.text]
    assert first.text.startswith("2. CONFIDENTIALITY\n\n2.1")
    assert first.heading_path == ("2. CONFIDENTIALITY",)


def test_a_number_whose_next_begins_a_sentence_is_no_heading() -> None:
    """Else the clauses after it would stand under the title of the first."""
    text = f"1. Definitions.\n\n{PROSE}2. Grant of licence. {PROSE}3. Term. {PROSE}"
    assert headings(text) == []
    assert titles(f"1. Definitions\n\n{PROSE}2. Grant\n\n{PROSE}3. Term\n\n{PROSE}") == [
        "1. Definitions",
        "2. Grant",
        "3. Term",
    ]


def test_lists_that_are_set_in_deeper_than_the_text_are_none() -> None:
    text = f"{WRAPPED}    1. Open the valve\n\n    {WRAPPED}    2. Close the valve\n\n{WRAPPED}{WRAPPED}"
    assert headings(text) == []


def test_manual_pages_and_titles_on_two_lines() -> None:
    assert titles("NAME\n     ls - lists files\n\nSEE ALSO\n     find, stat, and others.\n") == ["NAME", "SEE ALSO"]
    assert titles(f"ARTICLE IV\nINDEMNITY\n\n{PROSE}") == ["ARTICLE IV INDEMNITY"]
    assert titles(f"2. CONFIDENTIALITY\n2.1 {PROSE}") == ["2. CONFIDENTIALITY"]


def test_the_first_line_of_a_page_is_a_heading_and_its_running_head_is_none() -> None:
    pages = [f"Part II\n\n{title}\n{WRAPPED}" for title in ("Our year", "Our staff", "Our plans")]
    assert titles("\x0c".join(["Preface of all.\n\n", *pages])) == ["Our year", "Our staff", "Our plans"]
    assert titles(f"{PROSE}\x0c2. TERMS\n\n{PROSE}\x0c3. Prices\n\n{PROSE}") == ["2. TERMS", "3. Prices"]
    running_on = f"{PROSE}The customer pays within\n\x0cSixty days\n{PROSE}"
    assert headings(running_on) == []


def test_pages_are_counted_by_form_feeds_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text = f"{PROSE}\x0c\n\n\x0c{PROSE}\x0cLast words\n"
    parsed = parse(text.encode(), "report.txt")
    limit = size_limit(40, 40)
    for chunker in (RecursiveChunker(limit, 0, ""), FixedChunker(limit, 0, "")):
        chunks = chunker.split(parsed)
        assert [chunk.page for chunk in chunks] == [text.count("\x0c", 0, chunk.start) + 1 for chunk in chunks]
        assert {chunk.page for chunk in chunks} >= {1, 3}
    assert {chunk.page for chunk in RecursiveChunker(limit, 0, "").split(parse(PROSE.encode(), "a.txt"))} == {None}
    row = {"chunk_id": "c", "doc_id": "d", "status": "", "reason": "", "line": 5, "page": 7, "start": 0, "end": 1}
    assert "line 5, page 7, characters" in chunk_blocks([{**row, "tokens": 1, "context": "", "text": "x"}])
    show(hits_table([Hit("c", "docs/a.txt", 1.0, "x", "", "", (), "", 0, 1, 5, None, None, page=7)], "x"))
    assert "docs/a.txt:5, page 7" in capsys.readouterr().out


def test_a_text_with_a_paragraph_on_each_line_is_cut_between_lines() -> None:
    text = "".join(f"{PROSE.strip()} {PROSE.strip()} ({n})\n" for n in range(20))
    assert [block.kind for block in plain_blocks(text)] == ["paragraph"] * 20


@pytest.mark.parametrize(
    "text",
    [
        *("\n" * 200_000, "\n\x0c" * 100_000, "a" * 500_000, "1" + ".1" * 200_000, " " * 500_000 + "x"),
        *("1. A\n\n" * 10_000, "ABCD EF\n\n" * 10_000, "Some title\n\n" * 10_000, "ab\n==\n" * 10_000),
        *("\x0cTitle\n\n" * 5_000, "I. A\n\n" * 10_000, "Item 1\n\n" * 10_000),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_hostile_text_is_covered(text: str) -> None:
    assert_covers(text, plain_blocks(text), 0, len(text))
