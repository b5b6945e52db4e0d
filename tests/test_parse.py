"""Bytes to text, title, language and metadata: exact for text, and one reason for what is none."""

from __future__ import annotations

import codecs
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_pipeline.documents.language import detect_language
from ctx_pipeline.documents.parse import decode, parse
from ctx_pipeline.errors import PermanentError

SPANISH = "# Límites de uso\n\nEn este caso, el límite sube a mil peticiones por minuto para todos los clientes.\n"
ENGLISH = "# Usage limits\n\nIn this case the limit goes up to a thousand requests a minute for all customers.\n"
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff"))


# Decoding --------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(TEXT, st.sampled_from(["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be"]))
def test_text_is_decoded_without_its_mark_and_without_any_other_change(text: str, encoding: str) -> None:
    mark = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}.get(encoding, b"")
    assert decode(mark + text.encode(encoding)) == text


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r", "\u2028", "\x85", "\x0b", "\x0c", "\n\r\n"])
def test_newlines_are_left_as_they_are(newline: str) -> None:
    text = f"# Title{newline}{newline}One.{newline}Two.{newline}"
    assert parse(text.encode(), "a.md").text == text


@pytest.mark.parametrize(
    ("data", "encoding", "byte"),
    [
        (b"facturaci\xf3n", "UTF-8", 9),
        (b"\xc3", "UTF-8", 0),
        (b"ok \xed\xa0\x80", "UTF-8", 3),
        (b"\xc0\xaf", "UTF-8", 0),
        (b"\xef\xbb\xbfab\xffcd", "UTF-8", 5),
        (codecs.BOM_UTF16_LE + "ab".encode("utf-16-le") + b"\x00\xdc\x00\x00", "UTF-16-LE", 6),
        (codecs.BOM_UTF16_BE + b"\x00a\x00", "UTF-16-BE", 4),
    ],
)
def test_bytes_that_are_no_text_fail_with_the_place_of_the_first(data: bytes, encoding: str, byte: int) -> None:
    with pytest.raises(PermanentError) as caught:
        decode(data)
    assert str(caught.value).startswith(f"not valid {encoding}: ")
    assert f" at byte {byte};" in str(caught.value)
    assert "UTF-8 or exclude it" in str(caught.value)
    assert data[byte : byte + 1], "the offset is one of the file"


@pytest.mark.parametrize(
    ("data", "offset"),
    [(b"\0", 0), ("ñ\0".encode(), 1), (b"GIF\x03\x04\0\0", 5), ("ab\0".encode("utf-16"), 2)],
)
def test_a_nul_character_means_that_it_is_no_text_file(data: bytes, offset: int) -> None:
    with pytest.raises(
        PermanentError, match=f"a NUL character at offset {offset}: a binary file, not text; exclude it"
    ):
        decode(data)


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", codecs.BOM_UTF16_LE, b" \t\r\n", "\u00a0\u3000".encode()])
@pytest.mark.parametrize("path", ["notes/blank.md", "notes/blank.txt"])
def test_a_blank_document_has_the_title_of_its_path_and_no_language(data: bytes, path: str) -> None:
    parsed = parse(data, path)
    assert parsed.text.strip() == ""
    assert (parsed.title, parsed.language, parsed.metadata) == ("blank", "und", {})


# Title -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("---\ntitle: De la cabecera\n---\n\n# Del texto\n", "De la cabecera"),
        ("---\ntitle: '  spaced   out '\n---\n# Heading\n", "spaced out"),
        ("---\ntitle: |\n  two\n  lines\n---\n", "two lines"),
        ("---\ntitle: 2026\n---\n# Heading\n", "2026"),
        ("---\ntitle: 2026-01-15\n---\n# Heading\n", "2026-01-15"),
        ('---\r\ntitle: "Comillas"\r\n---\r\n# Heading\r\n', "Comillas"),
        ('---\ntitle: "a\\0b \\uD800c"\n---\n', "a\ufffdb ?c"),
        # what is no title
        ("---\ntitle: ''\n---\n# Heading\n", "Heading"),
        ("---\ntitle:\n---\n# Heading\n", "Heading"),
        ("---\ntitle: [a, b]\n---\n# Heading\n", "Heading"),
        ("---\ntitle: {a: b}\n---\n# Heading\n", "Heading"),
        ("---\ntitle: [unclosed\n---\n# Heading\n", "Heading"),
        # headings
        ("# One *strong* `code` [link](x) #\n", "One strong code link"),
        ("## Second level\n\n# First level\n", "First level"),
        ("Intro.\n\n### Third\n\n## Second\n", "Third"),
        ("Setext\n======\n", "Setext"),
        ("#\n\n## Named\n", "Named"),
        ("> # Quoted\n", "Quoted"),
        ("```\n# a comment\n```\n\n## Real\n", "Real"),
        ("<!-- # hidden -->\n\ntext\n", "my guide"),
        ("\ufeff# After a mark\n", "After a mark"),
        ("no heading at all\n", "my guide"),
    ],
)
def test_the_title_is_that_of_the_front_matter_else_the_first_heading_else_the_path(text: str, title: str) -> None:
    assert parse(text.encode(), "docs/my_guide.md").title == title


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("límites-de_uso.md", "límites de uso"),
        ("a/b/guide.txt", "guide"),
        ("guides/README.md", "guides"),
        ("guides/index.md", "guides"),
        ("README.md", "README"),
        ("v1.2/notes.v1.2.txt", "notes.v1.2"),
        ("a/new\nline.txt", "new line"),
        ("a/___.md", "___.md"),
        (".md", ".md"),
        ("x" * 250 + ".txt", "x" * 200),
    ],
)
def test_a_title_from_the_path_is_its_words(path: str, title: str) -> None:
    assert parse(b"Some text.", path).title == title


def test_only_markdown_has_headings_and_front_matter() -> None:
    data = b"---\ntitle: Front\n---\n\n# Heading\n"
    for path in ("a.md", "A.MD", "a.markdown", "a.mdx"):
        parsed = parse(data, path)
        assert (parsed.title, parsed.media_type, parsed.metadata) == ("Front", "text/markdown", {"title": "Front"})
    for path in ("note.txt", "note"):
        parsed = parse(data, path)
        assert (parsed.title, parsed.media_type, parsed.metadata) == ("note", "text/plain", {})


@pytest.mark.parametrize(
    ("path", "media_type"),
    [("a.html", "text/html"), ("A.HTM", "text/html"), ("a.py", "text/x-source"), ("a.rs", "text/x-source")],
)
def test_other_text_is_told_apart_by_its_suffix(path: str, media_type: str) -> None:
    assert parse(b"# One\n\nTwo.", path).media_type == media_type


def test_a_long_title_is_cut() -> None:
    assert parse(b"---\ntitle: " + b"word " * 100 + b"\n---\n", "a.md").title == ("word " * 100)[:200].rstrip()


# Metadata --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("yaml", "value"),
    [
        ("plain text", "plain text"),
        ("12", 12),
        ("1.5", 1.5),
        ("true", True),
        ("~", None),
        ("[a, [b, 1]]", ["a", ["b", 1]]),
        ("2026-01-15", "2026-01-15"),
        ("2026-01-15 10:00:00", "2026-01-15T10:00:00"),
        ("{2026-01-15: a, 1: b, ~: c}", {"2026-01-15": "a", "1": "b", "None": "c"}),
        (".nan", "nan"),
        ("-.inf", "-inf"),
        ("!!set {b, a, c}", ["a", "b", "c"]),
        ('"\\uD800"', "?"),
        ('"a\\0b"', "a\ufffdb"),
        ('{"\\uD800": 1}', {"?": 1}),
        ("{!!binary aGVsbG8=: 1}", {"b'hello'": 1}),
    ],
)
def test_front_matter_of_any_kind_becomes_json(yaml: str, value: object) -> None:
    metadata = parse(f"---\nkey: {yaml}\n---\n\nText.\n".encode(), "a.md").metadata
    assert metadata == {"key": value}
    assert json.loads(json.dumps(metadata, allow_nan=False)) == metadata
    json.dumps(metadata, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "matter",
    [
        "key: [unclosed", "- a\n- list", "just: [text", "a: &x [1]\nb: *x",
        "key: !!python/object:os.system {}", "k: " + "9" * 5000, "k: " + "[" * 1000, "!!bool x: maybe",
    ],
)  # fmt: skip
def test_front_matter_that_is_none_leaves_the_document_whole(matter: str) -> None:
    text = f"---\n{matter}\n---\n\n# Heading\n\nText.\n"
    parsed = parse(text.encode(), "a.md")
    assert (parsed.text, parsed.metadata) == (text, {})


# Language --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (SPANISH, "es"),
        (ENGLISH, "en"),
        (" \n" * 5_000 + SPANISH, "es"),
        ("Wir haben die Grenze für alle Kunden auf tausend Anfragen in der Minute erhöht.", "de"),
        ("Cuatro palabras no bastan", "und"),
        ("1 2 3 4 5 6 7 8 9 10 11 12", "und"),
        ("| - | - | - | - | - | - |", "und"),
        ("a b c d e f g h", "und"),
    ],
)
def test_the_language_is_told_where_there_is_enough_text(text: str, language: str) -> None:
    assert detect_language(text) == language
    assert parse(text.encode(), "a.md").language == language


# Hostile ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [" " * 1_000_000, "\n" * 1_000_000, "palabra " * 640_000, "<|endoftext|>" * 10_000, "# " * 100_000, "> " * 50_000],
    ids=["spaces", "newlines", "one line of 5 MB", "endoftext", "hashes", "quotes"],
)
@pytest.mark.parametrize("path", ["a.md", "a.txt"])
def test_hostile_text_is_kept_whole(text: str, path: str) -> None:
    parsed = parse(text.encode(), path)
    assert parsed.text == text
    assert len(parsed.title) <= 200


@settings(deadline=None)
@given(st.binary(max_size=200) | TEXT.map(str.encode))
def test_any_bytes_are_a_document_or_fail_for_good(data: bytes) -> None:
    try:
        parsed = parse(data, "a.md")
    except PermanentError:
        return
    assert parsed.title
    assert json.dumps(parsed.metadata)
