"""Chunks of one section begin with the last sentences of the chunk before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ctx_pipeline.chunking.boundaries import pieces, sentence_cuts
from ctx_pipeline.chunking.model import SizeLimit
from ctx_pipeline.chunking.tokens import count_tokens
from ctx_pipeline.chunking.units import WHOLE, Range, Unit

# Prose has about four characters a token: where more are needed, the overlap is shorter than asked for.
_CHARS_PER_TOKEN = 8

Span = tuple[int, int, int, int]
"""Start, end, tokens of o200k_base, tokens of the embedder."""


def overlapping_spans(
    text: str,
    units: Sequence[Unit],
    sections: Sequence[Sequence[Range]],
    spans: Sequence[Span],
    limit: SizeLimit,
    overlap: int,
    seen: Callable[[int, int], str],
) -> list[Span]:
    """The spans, one for each range of the sections, begun earlier by whole sentences of the range before.

    What is added has at most `overlap` tokens of o200k_base, the span stays within `limit`, and begins after the
    beginning of the range before. `seen` gives what the embedder sees of a span.
    """
    starts: list[list[int]] = []
    for section in sections:
        for number, (first, _) in enumerate(section):
            before = section[number - 1] if number and not units[first].apart else (first, first)
            starts.append(list(_sentence_starts(text, units, before, overlap * _CHARS_PER_TOKEN)))
    _keep_nearest(text, starts, spans, limit, overlap)
    extended = list(spans)
    open_spans = [number for number, own in enumerate(starts) if own]
    while open_spans:
        added = [text[starts[n][-1] : spans[n][0]].rstrip() for n in open_spans]
        whole = [text[starts[n][-1] : spans[n][1]] for n in open_spans]
        too_large = []
        embedder_tokens = limit.count_embedder_tokens([seen(starts[n][-1], spans[n][1]) for n in open_spans])
        sizes = zip(count_tokens(added), count_tokens(whole), embedder_tokens, strict=True)
        for number, (added_tokens, *size) in zip(open_spans, sizes, strict=True):
            if added_tokens <= overlap and limit.allows(size[0], size[1]):
                extended[number] = (starts[number][-1], spans[number][1], size[0], size[1])
            else:
                starts[number].pop()
                too_large.append(number)
        open_spans = [number for number in too_large if starts[number]]
    return extended


def _sentence_starts(text: str, units: Sequence[Unit], before: Range, most_chars: int) -> Iterator[int]:
    """Where sentences of a range begin, last first, without its first; headings, tables and code count as sentences."""
    first, last = before
    for unit in reversed(units[first:last]):
        is_whole = unit.sticky or unit.kind in WHOLE
        spans = [(unit.start, unit.end)] if is_whole else pieces(text, unit.start, unit.end, sentence_cuts, 1)
        for start, _ in reversed(spans):
            if start == units[first].start or units[last - 1].end - start > most_chars:
                return
            yield start


def _keep_nearest(
    text: str, starts: Sequence[list[int]], spans: Sequence[Span], limit: SizeLimit, overlap: int
) -> None:
    """Drop starts that are too far away by the sum of their sentences, counted with one call per tokenizer."""
    sentences = []
    for own, (span_start, *_) in zip(starts, spans, strict=True):
        ends = [span_start, *own]
        sentences += [text[start:end].rstrip() for start, end in zip(own, ends, strict=False)]
    if not sentences:
        return
    counts = zip(count_tokens(sentences), limit.count_embedder_tokens(sentences), strict=True)
    for own, (_, _, tokens, embedder_tokens) in zip(starts, spans, strict=True):
        kept = added_tokens = added_embedder_tokens = 0
        for sentence_tokens, sentence_embedder_tokens in [next(counts) for _ in own]:
            added_tokens += sentence_tokens
            added_embedder_tokens += sentence_embedder_tokens
            if added_tokens <= overlap and limit.allows(tokens + added_tokens, embedder_tokens + added_embedder_tokens):
                kept += 1
        del own[kept:]
