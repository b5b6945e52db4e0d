"""Titles: what a document calls itself, else its file's name; never a lower heading, a comment or a line of code."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_pipeline.documents.parse import parse
from tests.markdown_documents import documents, paragraphs


def title(text: str, path: str = "docs/my_guide.md") -> str:
    return parse(text.encode(), path).title


NONE = "my guide"
PROSE = "A sentence of the introduction. " * 10


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# First level\n\n## Second\n", "First level"),
        ("First level\n===========\n\nSecond\n------\n", "First level"),
        (f"{PROSE}\n\n# First level\n", "First level"),
        ("<!-- a comment\n# not this\n-->\n\n# First level\n", "First level"),
        ("![badge](b.png)\n\n- [one](#one)\n- [two](#two)\n\n# First level\n", "First level"),
        ("<div align='center'>\n\n# First level\n\n</div>\n", "First level"),
        ("---\nlayout: docs\nlist:\n" + "  - /old/page.html\n" * 300 + "---\n\n# First level\n", "First level"),
        ("```sh\n# a comment\n```\n\n# First level\n\n```sh\n# another\n```\n", "First level"),
        # HTML
        ('<p><img src="l.png"></p>\n<h1 align="center">First <b>level</b></h1>\n\n## Contents\n', "First level"),
        ("<h1>\n\nFirst level\n\n</h1>\n\ntext\n", "First level"),
        ("<H1>First &amp; level</H1>\n", "First & level"),
        ('<h1><img src="l.png" alt="First level"></h1>\n', "First level"),
        ("<!-- <h1>not this</h1> -->\n<h1>First level</h1>\n", "First level"),
        ("<pre>\n<h1>not this</h1>\n</pre>\n\n# First level\n", "First level"),
        # no title
        ("## Second\n\n### Third\n", NONE),
        ("text\n", NONE),
        ("> # Quoted\n\ntext\n", NONE),
        ("- # In a list\n", NONE),
        ("Use `<h1>Code</h1>` for it.\n", NONE),
        ("    # indented code\n", NONE),
        ("```\n# never closed\n", NONE),
        ("<!-- # never closed\n\n# Heading\n", "Heading"),
        ("<h1>never closed\n", NONE),
        ("# \n\ntext\n", NONE),
        ("# {{ page.title }}\n", NONE),
        ("---\ntitle: '{{ page.name }}'\n---\n\ntext\n", NONE),
        # headings of other sections
        (f"## Options\n\n{PROSE}\n\n# Appendix\n\ntext\n", NONE),
        (f"{PROSE * 10}\n\n# Figure 1\n", NONE),
        # several
        ("# 5.0.0\n\n- a\n\n# 4.0.0\n\n- b\n", NONE),
        ("# Guide\n\ntext\n\n# Install\n\ntext\n", NONE),
        ("# Guide\n\n" + PROSE * 200 + "\n\n# Far away\n", NONE),
        ("# Guide\n\ntext\n\n<h1>Install</h1>\n", NONE),
        ("---\ntitle: Named\n---\n\n# 5.0.0\n\n# 4.0.0\n", "Named"),
    ],
)
def test_a_title_is_the_only_heading_of_the_first_level_near_the_beginning(text: str, expected: str) -> None:
    for written in (text, text.replace("\n", "\r\n")):
        assert title(written) == expected


@pytest.mark.parametrize("length", [1_990, 2_000, 2_010])
@pytest.mark.parametrize("code", ["```\n# no\n{}\n```\n", "<!--\n# no\n{}\n-->\n", "<pre>\n# no\n{}\n</pre>\n"])
def test_no_title_is_read_out_of_a_text_that_is_cut_somewhere(code: str, length: int) -> None:
    filler = "x" * (length - len(code))
    assert title(code.format(filler + "\n# no") + "\n## Second\n\ntext\n") == NONE


@settings(max_examples=40, deadline=None)
@given(before=st.lists(paragraphs, max_size=2), text=documents.filter(lambda text: not text.startswith("---")))
def test_a_second_heading_of_the_first_level_anywhere_makes_the_name_the_title(before: list[str], text: str) -> None:
    whole = "\n\n".join(["# Ein Titel", *before, "# Noch ein Titel", text])
    assert title(whole) == NONE


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("Views/Board view.md", "Board view"),
        ("límites-de_uso.md", "límites de uso"),
        ("v3/_index.md", "v3"),
        ("v3/index.md", "v3"),
        ("guides/Index.MD", "guides"),
        ("guides/README.md", "guides"),
        ("guides/README.es.md", "guides"),
        ("guides/_index.zh-cn.md", "guides"),
        ("guides/index.notes.md", "index.notes"),
        ("README.md", "README"),
        ("_index.md", "index"),
        ("www.example.com.md", "www.example.com"),
    ],
)
def test_a_document_without_a_title_is_called_as_its_file_or_folder(path: str, expected: str) -> None:
    assert title("Text.", path) == expected


def test_a_title_depends_on_the_document_alone() -> None:
    parsed = [parse(b"## Options\n\ntext\n", path) for path in ("a/Board view.md", "b/Board view.md")]
    assert parsed[0] == parsed[1]
