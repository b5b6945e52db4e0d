"""Bytes to text; what is no text is refused by what it is."""

from __future__ import annotations

import codecs
import re

from ctx_pipeline.errors import PermanentError

SIGNATURES = (
    (b"%PDF-", "a PDF file"),
    (b"PK\x03\x04", "a ZIP archive or an Office document (.docx, .xlsx, .epub)"),
    (b"PK\x05\x06", "an empty ZIP archive"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old or encrypted Office file (.doc, .xls, .msg)"),
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF87a", "a GIF image"),
    (b"GIF89a", "a GIF image"),
    (b"\x7fELF", "a program or library (ELF)"),
    (b"\x1f\x8b\x08", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ\0", "an xz archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"PAR1", "a Parquet file"),
)
"""First bytes of kinds of files, and what they are."""

LFS_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\r?\n(?:[a-z0-9.-]+ [^\n]*\n)*oid [^\n]+\n(?:[a-z0-9.-]+ [^\n]*\n?)*"
)
LARGEST_LFS_POINTER = 1024
"""Bytes, by its specification."""

LOOKED_AT = 65_536
"""Bytes that tell whether a file is binary; a decoder sees all of them."""
CONTROL_SHARE = 0.05
"""Of control characters: text in an old encoding has none but tabs, line ends, form feeds and escapes."""
_CONTROLS = bytes(code for code in (*range(32), 127) if code not in b"\t\n\r\f\x1b")


def decode(data: bytes) -> str:
    """Text of UTF-8 bytes, or of UTF-16 ones that begin with a byte order mark; the mark is dropped.

    Raises PermanentError that says what the bytes are, or names the first bad one, counted from 0 with the mark.
    """
    if len(data) <= LARGEST_LFS_POINTER and LFS_POINTER.fullmatch(data):
        raise PermanentError("a Git LFS pointer: the content is not here; run `git lfs pull`, or exclude the file")
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        raise PermanentError("UTF-32 text; save the file as UTF-8 or exclude it")
    is_utf_16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16" if is_utf_16 else "utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        if not is_utf_16:
            _refuse_by_kind(data)
            if _is_binary(data[:LOOKED_AT]):
                raise PermanentError("a binary file, not text; exclude it") from None
        raise PermanentError(
            f"not valid {error.encoding.upper()}: {error.reason} at byte {error.start}; "
            "save the file as UTF-8 or exclude it"
        ) from None
    if "\0" in text or text.startswith("%PDF-"):  # a PDF may be of ASCII alone
        _refuse_by_kind(data)
        raise PermanentError(f"a NUL character at offset {text.index(chr(0))}: a binary file, not text; exclude it")
    return text


def _refuse_by_kind(data: bytes) -> None:
    """Raise PermanentError for bytes that tell what they are."""
    kind = next((kind for signature, kind in SIGNATURES if data.startswith(signature)), "")
    if kind:
        raise PermanentError(f"{kind}, not text; exclude it, or turn it into text")
    if _is_utf_16(data[:LOOKED_AT]):
        raise PermanentError("UTF-16 text without a byte order mark; save the file as UTF-8 or exclude it")


def _is_binary(data: bytes) -> bool:
    controls = len(data) - len(data.translate(None, _CONTROLS))
    return b"\0" in data or controls > CONTROL_SHARE * len(data)


def _is_utf_16(data: bytes) -> bool:
    """Whether NUL bytes stand where UTF-16 has them: all before, or all after, the ASCII characters of a text."""
    data = data[: len(data) // 2 * 2]
    low, high = data[::2].count(0), data[1::2].count(0)
    if not (low or high) or (low and high):
        return False
    try:
        text = data.decode("utf-16-be" if low else "utf-16-le")
    except UnicodeDecodeError as error:
        if error.end < len(data):  # else a pair of surrogates was cut
            return False
        text = data[: error.start].decode("utf-16-be" if low else "utf-16-le")
    return not any(ord(letter) < 32 and letter not in "\t\n\r\f" for letter in text)
