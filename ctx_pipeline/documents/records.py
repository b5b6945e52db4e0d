"""Where messages begin in texts made of them: logs, chats, transcripts, subtitles, lines of data.

Nothing is known of the program that wrote them. A line begins a message when it begins with a time or with a speaker,
and enough lines of the text do; a paragraph of lines that do not look wrapped is one of data, each line for itself.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

_LINE_CHARS = 200

_CLOCK = r"\d{1,2}[:.h]\d{2}(?:[:.]\d{2}(?:[.,]\d{1,9})?)?(?:\s?[AaPp]\.?[Mm]\.?)?"
_DATE = (
    r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}"
    r"|(?:[A-Z][a-z]{2},?\s+)?[A-Z][a-z]{2}\s+\d{1,2}|\d{1,2}[-/ ][A-Z][a-z]{2}[-/ ]\d{2,4})"
)
_TIME = re.compile(
    rf"""(?:\d+[ \t]+)?[\[(<{{]?\s*(?:
        {_DATE}[T_,:\s]+(?:at\s+)?{_CLOCK}  # a day and a time
      | \d{{1,2}}:\d{{2}}(?:[:.]\d{{2}}(?:[.,]\d{{1,9}})?)?(?:\s?[AaPp]\.?[Mm]\.?)?(?=[\])>}}\s,;:-]|$)
      | [IWEFD]\d{{4}}\s\d{{2}}:\d{{2}}:\d{{2}}
      | \d{{4}}-\d{{2}}-\d{{2}}(?=[\])>}}]|$)
      | \d{{10}}(?:\.\d+|\d{{3}})?(?=[\])>}}\s])
    )
    | \d{{1,3}}(?:\.\d{{1,3}}){{3}}\s\S+\s\S+\s\[  # the log of a web server
    | \[\s*\d+\.\d{{6}}\]""",
    re.VERBOSE,
)
_TIME_AT_END = re.compile(rf"\S.{{0,40}}\s[\[(]?{_CLOCK}[\])]?$")
_CUE = re.compile(r"(?:\d{1,3}:)?\d{1,2}:\d{2}[.,]\d{1,3}\s*-->\s*\d")
_SPEAKER = re.compile(
    r"""[-*•]?\s*(?:<(?P<nick>[^<>\s]{1,30})>\s | \[(?P<bracketed>[^\[\]]{1,30})\]:\s
        | (?P<name>[^\W\d_][\w.'’ -]{0,38}?)\s?(?:\([^()]{1,40}\))?:(?:\s|$))""",
    re.VERBOSE,
)
_DELIMITERS = (",", ";", "\t", "|")

_FEWEST_TIMES, _TIMES_SHARE = 3, 0.1
_FEWEST_SPEAKERS, _SPEAKERS_SHARE = 4, 0.3
_FEWEST_DATA_LINES = 8
_WRAPPED_COLUMNS = 110
_FARTHEST_CONTINUATION = 40
"""Lines without a time or speaker that still belong to a message."""
_GROUP_CHARS, _MOST_GROUP_CHARS = 64, 256
_WORD_CHARS = 30


def message_starts(lines: Sequence[str]) -> list[int]:
    """Numbers of the lines that begin a message; empty where the text is not made of messages.

    `lines` come without whitespace at their ends; what is blank is "".
    """
    filled = sum(1 for line in lines if line)
    for starts, fewest, share in (
        (_cues(lines), 2, 0.1),
        (_times(lines), _FEWEST_TIMES, _TIMES_SHARE),
        (_speakers(lines), _FEWEST_SPEAKERS, _SPEAKERS_SHARE),
    ):
        if len(starts) >= max(fewest, 1) and len(starts) >= share * filled:
            return starts
    return []


def message_ends(lines: Sequence[str], starts: Sequence[int]) -> list[int]:
    """For each message the line after its last: where the next begins, or before prose that is too long for one."""
    ends = []
    for start, following in pairwise([*starts, len(lines)] if starts else []):
        is_near = following < len(lines) and following - start <= _FARTHEST_CONTINUATION
        ends.append(following if is_near else _blank_from(lines, start + 1, following))
    return ends


def _blank_from(lines: Sequence[str], first: int, last: int) -> int:
    return next((number for number in range(first, last) if not lines[number]), last)


def data_lines(lines: Sequence[str]) -> list[int]:
    """Of a paragraph of data, the numbers of lines at which its records begin; empty for prose.

    Short lines are kept together: some 64 to 256 characters, divided after lines that their content chooses.
    """
    if len(lines) < _FEWEST_DATA_LINES or not (_is_delimited(lines) or not _is_wrapped(lines)):
        return []
    starts, chars = [0], 0
    for number, line in enumerate(lines[:-1]):
        chars += len(line) + 1
        is_chosen = zlib.crc32(line.encode("utf-8", "surrogatepass")) % 2 == 0
        if chars > _MOST_GROUP_CHARS or (chars > _GROUP_CHARS and (is_chosen or len(line) > _GROUP_CHARS)):
            starts.append(number + 1)
            chars = 0
    return starts


def _cues(lines: Sequence[str]) -> list[int]:
    starts = []
    for number, line in enumerate(lines):
        if "-->" in line[:_LINE_CHARS] and _CUE.match(line):
            has_name = number and lines[number - 1] and (number == 1 or not lines[number - 2])
            starts.append(number - 1 if has_name else number)
    return starts


def _times(lines: Sequence[str]) -> list[int]:
    starts = []
    for number, line in enumerate(lines):
        if line and (line[0].isdigit() or line[0] in "[(<{" or line[0].isupper()):
            short = line[:_LINE_CHARS]
            if _TIME.match(short) or (len(line) <= 60 and _TIME_AT_END.fullmatch(short)):
                starts.append(number)
    return starts


def _speakers(lines: Sequence[str]) -> list[int]:
    """Lines that begin with a name and a colon, where names come back."""
    names: list[str] = []
    starts = []
    for number, line in enumerate(lines):
        found = _SPEAKER.match(line[:_LINE_CHARS]) if line else None
        if found and not (found["name"] or "")[:1].islower():
            names.append((found["nick"] or found["bracketed"] or found["name"]).casefold())
            starts.append(number)
    repeated = {name for name, count in Counter(names).items() if count > 1}
    if 2 * sum(name in repeated for name in names) < len(names) or len(repeated) < 2:
        return []
    return [start for start, name in zip(starts, names, strict=True) if name in repeated]


def _is_delimited(lines: Sequence[str]) -> bool:
    """Whether nearly all lines hold the same number of one delimiter."""
    for delimiter in _DELIMITERS:
        counts = Counter(line.count(delimiter) for line in lines)
        count, times = counts.most_common(1)[0]
        if count and 10 * times >= 9 * len(lines):
            return True
    return False


def _is_wrapped(lines: Sequence[str]) -> bool:
    """Whether the lines end where the next word would have passed the margin."""
    lengths = sorted(len(line) for line in lines)
    width = lengths[len(lengths) * 9 // 10]
    if width > _WRAPPED_COLUMNS:
        return False
    pairs = list(pairwise(lines))
    forced = sum(
        len(line) + 1 + len(following[:_WORD_CHARS].split(maxsplit=1)[0]) > width - 3 for line, following in pairs
    )
    runs_on = sum(following[0].islower() for _, following in pairs)
    return 2 * forced >= len(pairs) or 3 * runs_on >= len(pairs)
