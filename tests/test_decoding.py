"""What is included and no text is refused by what it is; what is text is read."""

from __future__ import annotations

import codecs
import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_pipeline.documents.decoding import decode
from ctx_pipeline.errors import PermanentError

SPANISH = "Artículo primero. El límite sube a 1.000 peticiones.\n"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n", "a PDF file"),
        (b"%PDF-1.4\n1 0 obj\n<< >>\nendobj\n", "a PDF file"),
        (b"PK\x03\x04\x14\0\x06\0\x08\0", "a ZIP archive or an Office document"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(20), "an old or encrypted Office file"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a PNG image"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "a JPEG image"),
        (b"GIF89a\x01\0\x01\0\x80", "a GIF image"),
        (b"\x7fELF\x02\x01\x01\0", "a program or library"),
        (gzip.compress(SPANISH.encode(), mtime=0), "a gzip archive"),
        (b"SQLite format 3\0\x10\0", "an SQLite database"),
        (SPANISH.encode("utf-16-le"), "UTF-16 text without a byte order mark"),
        (SPANISH.encode("utf-16-be"), "UTF-16 text without a byte order mark"),
        ("汉字 和 字母\n".encode("utf-16-le"), "UTF-16 text without a byte order mark"),
        ("Предел повышен до 1000 запросов\n".encode("utf-16-le"), "UTF-16 text without a byte order mark"),
        (SPANISH.encode("utf-32"), "UTF-32 text"),
        (b"text and a\0byte", "a NUL character at offset 10: a binary file"),
        (bytes(range(256)), "a binary file"),
        (b"\x80\x01\x02\x03" * 50, "a binary file"),
    ],
)
def test_no_text_is_named_for_what_it_is(data: bytes, kind: str) -> None:
    with pytest.raises(PermanentError) as caught:
        decode(data)
    message = str(caught.value)
    assert message.startswith(kind)
    assert ("UTF-8" in message) == kind.startswith("UTF"), "only text can be saved as UTF-8"
    assert "exclude" in message


def test_text_of_an_old_encoding_is_to_be_saved_anew() -> None:
    for encoding in ("latin-1", "cp1252", "shift_jis"):
        with pytest.raises(PermanentError, match=r"not valid UTF-8: .* save the file as UTF-8 or exclude it"):
            decode(("Facturación: 日本" if encoding == "shift_jis" else SPANISH).encode(encoding, "ignore") * 3)


def test_a_git_lfs_pointer_says_where_the_content_is() -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 12345\n"
    for data in (pointer, pointer.replace(b"\n", b"\r\n"), pointer.replace(b"oid", b"ext-0-x sha256:aa\noid")):
        with pytest.raises(PermanentError, match="a Git LFS pointer: the content is not here; run `git lfs pull`"):
            decode(data)
    about = b"A pointer begins with:\n\n" + pointer
    assert decode(about) == about.decode()
    assert decode(pointer + b"\nand prose\n") == (pointer + b"\nand prose\n").decode()


@pytest.mark.parametrize("text", ["PK is a key.\n", "GIF89a is a format\n", "BZh", "MZ", "\x1b[1mbold\x1b[0m", "%PD"])
def test_text_that_begins_like_something_else_is_text(text: str) -> None:
    assert decode(text.encode()) == text


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_text_is_read_in_every_encoding_that_tells_itself(text: str) -> None:
    if not text.startswith(("%PDF-", "version https://git-lfs", "\ufeff")):
        assert decode(text.encode()) == text
        assert decode(codecs.BOM_UTF8 + text.encode()) == text
        assert decode(codecs.BOM_UTF16_LE + text.encode("utf-16-le")) == text or text.startswith("\0")


@given(st.binary(max_size=300))
def test_any_bytes_are_text_or_refused_with_a_reason(data: bytes) -> None:
    try:
        assert "\0" not in decode(data)
    except PermanentError as error:
        assert str(error)
