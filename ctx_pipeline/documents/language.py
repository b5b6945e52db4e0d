"""The language of a document: that of its prose, whatever stands in its front matter, code, comments and markup.

A long document is judged by a sample: the pieces of its prose whose hashes are the lowest. They lie all over it, and an
edit exchanges at most as many of them as it touches.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence

from ctx_pipeline.documents.blocks import Block
from ctx_pipeline.documents.left_out import without

SAMPLE_CHARS, LARGE_SAMPLE_CHARS = 500, 2_000
"""Of prose that the detector sees, and sees when it is not sure: it takes 0.25 ms for 1,000. Of 800 windows of 40 words
of Spanish and English, 230 characters each, all but one were told right."""
READ_CHARS = 4_000
"""Of whole blocks that these samples are taken from, so that a long document costs no more than a short one."""
SURE = 0.9
PIECE_CHARS = 300
MIN_WORDS = 5
MIN_CONFIDENCE = 0.4
"""Of 400 windows of 8 words of Spanish prose, 0.88 are told at this and 0.02 are told wrong (0.05 without a limit)."""

_NO_PROSE = frozenset(["front_matter", "fence", "code", "rule", "lead", "tail", "skipped"])
_PIECE_END = re.compile(r"[\r\n]+|(?<=[.!?…。！？])\s+")
_MARKUP = re.compile(
    r"<!--.*?(?:-->|\Z)|<(?P<opaque>script|style|pre|code)\b.*?(?:</(?P=opaque)\s*>|\Z)|</?[a-zA-Z][^<>]*>"
    r"|(?P<ticks>`{1,3})(?!`)[^`]*(?P=ticks)"
    r"|\]\([^()\s]*\)|\]\[[^\[\]\r\n]*\]|\]:[ \t]*\S+|https?://\S+|\{\{[^{}]*\}\}|\{%[^{}]*%\}",
    re.IGNORECASE | re.DOTALL,
)
_WORD = re.compile(r"[^\W\d_]{2,}")


def language_of(text: str, blocks: Sequence[Block]) -> str:
    """ISO 639-1 code of the main language of the prose in `blocks`; `und` where there is too little to be sure."""
    read = _sample(set(_prose(text, blocks)), READ_CHARS)
    pieces = {piece for part in read for piece in _pieces(_MARKUP.sub(" ", part))}
    code, confidence = _guess(_sample(pieces, SAMPLE_CHARS))
    if confidence < SURE:
        code, confidence = _guess(_sample(pieces, LARGE_SAMPLE_CHARS))
    return code if confidence >= MIN_CONFIDENCE else "und"


def _guess(texts: Iterable[str]) -> tuple[str, float]:
    """The likeliest language of texts taken together, and its probability; 0 for fewer than five words of letters."""
    prose = " ".join(" ".join(texts).split())
    if sum(1 for _ in zip(_WORD.finditer(prose), range(MIN_WORDS), strict=False)) < MIN_WORDS:
        return "und", 0.0
    import py3langid

    scores = [(score, code) for code, score in py3langid.rank(prose) if len(code) == 2]
    # Scores grow with the text; divided by the root of its length they give probabilities that mean the same for all.
    scale = math.sqrt(len(prose.encode("utf-8", "surrogatepass")))
    best, code = max(scores)
    return str(code), 1 / sum(math.exp((score - best) / scale) for score, _ in scores)


def _prose(text: str, blocks: Sequence[Block]) -> Iterator[str]:
    """The texts of blocks without others in them; of HTML, which may be one long comment, what a reader sees."""
    for block in blocks:
        if block.children:
            yield from _prose(text, block.children)
        elif block.kind not in _NO_PROSE:
            part = without(text[block.start : block.end], block.start, block.left_out)
            yield _MARKUP.sub(" ", part).strip() if part.startswith("<") else part


def _sample(texts: set[str], most_chars: int) -> Iterator[str]:
    """The texts of the lowest hashes, whatever their places, until there are as many characters as wanted."""
    for text in sorted(texts, key=lambda text: (zlib.crc32(text.encode("utf-8", "surrogatepass")), text)):
        if most_chars <= 0:
            break
        yield text
        most_chars -= len(text)


def _pieces(prose: str) -> Iterator[str]:
    for sentence in _PIECE_END.split(prose):
        for start in range(0, len(sentence), PIECE_CHARS):
            if (piece := sentence[start : start + PIECE_CHARS].strip()) and _WORD.search(piece):
                yield piece
