"""What the shape of a paragraph's first lines says: whether they could be a heading, and of which kind.

Nothing here looks at what stands around the paragraph. Shapes are refused rather than guessed: code, columns, dates,
page numbers, entries of contents, sentences.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_MOST_CHARS, _MOST_NAMED_CHARS, _MOST_SHORT_CHARS = 100, 160, 70
_MOST_TITLE_LINES = 3
_WRAPPED_CHARS = 50
"""A title that goes on in the next line is at least as long."""
_TAB_COLUMNS = 8

_NAME_WORDS = {
    10: "part book title libro título titulo parte partie teil livre titre",
    20: "chapter capítulo capitulo chapitre kapitel item schedule annex annexe anexo anhang appendix apéndice exhibit",
    30: "section sección seccion abschnitt",
    40: "article artículo articulo artikel clause cláusula clausula rule regla",
    50: "note nota",
}
_NAMES = {name: rank for rank, names in _NAME_WORDS.items() for name in names.split()}
_ORDINAL = (
    r"\d{1,4}(?:\.\d{1,3})*[A-Za-z]?|[IVXLC]{1,7}|[A-Z]|(?i:one|two|three|four|five|six|seven|eight|nine|ten|first|second"
    r"|third|primer[oa]?|segund[oa]|tercer[oa]?|cuart[oa]|quint[oa]|sext[oa]|séptim[oa]|octav[oa]|noven[oa]|décim[oa]"
    r"|únic[oa]|preliminar|final)"
)
_NAMED = re.compile(
    rf"(?P<name>(?i:{'|'.join(_NAMES)}))\s+(?P<number>{_ORDINAL})(?![\w'’])(?P<mark>[.):\]–—-]*)(?:\s*(?P<rest>\S.*))?"
)
_NUMBERED = re.compile(
    r"(?P<number>\d{1,3}(?:\.\d{1,3}){0,5}|[IVX]{1,6}(?=[.)])|[A-Z](?=[.)]))(?P<mark>[.)]?)(?P<gap>\s+)(?P<rest>\S.*)"
)
_UNMARKED = re.compile(r"\d{1,3} (?=\S)")
_UNDERLINE = re.compile(r"([=\-~^*#+_])\1{2,}")

_ENTRY_OF_CONTENTS = re.compile(r".*?(?:\.\s?){4}.*|.*\S(?:\s{2,}|\t)[\divxlF-]{1,6}")
_PAGE_NUMBER = re.compile(
    r"\W*(?:page|pág(?:ina|\.)?|p\.)?\W*(?:\d+|[ivxl]+)(?:\s*(?:of|de|/)\s*\d+)?\W*", re.IGNORECASE
)
_DAY = re.compile(r"(?:\w+\s+)?(?:\d{1,2}\s+(?:de\s+)?[^\W\d]+|[^\W\d]+\s+\d{1,2}),?\s+(?:de\s+)?\d{4}")
_CODE = re.compile(r"[={}<>|\\;@_`~^]|::|\(\)|\S\.\.\.?\S|[:/]//?\S|\[:|\s\*\s|\w/\d|\A[-*#$/.•+]")
_STATEMENT = re.compile(r"[{}<>|\\;]|::")
_COLUMNS = re.compile(r"\S(?:\s{3,}|\t)\S")
_FORMULA = re.compile(
    r"(?:Dear|Hi|Hello|Estimad[oa]s?|Querid[oa]s?|Thank|Sincerely|Yours|Regards|By|Copyright|All Rights|©|\(c\))\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d_]{2,}")
_SENTENCES = re.compile(r"[a-záéíóúñ]{3,}[.?!]\s+[A-ZÁÉÍÓÚÑ]")

_BOXED_RANK, _UNDERLINE_RANKS, _OTHER_UNDERLINE_RANK = 12, {"=": 15, "-": 55}, 57
_PAGE_RANK, _CAPITALS_RANK, _SHORT_RANK = 25, 50, 90
_ROMAN_RANK, _LETTERED_RANK, _DOTTED_NAME_RANK = 27, 45, 60

Number = tuple[str, tuple[int, ...]]
"""The kind of a numbering, and a number of it by its parts."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Lines that could be a heading."""

    style: str
    """Candidates of one style in a row are a list."""
    rank: int
    """Where its kind stands among others: smaller is higher."""
    title: str
    lines: int
    is_strong: bool
    """Its shape tells, whatever text follows."""
    number: Number | None = None
    needs_parts: bool = False
    """It is numbered as titles are only in texts whose titles have numbered parts: `3 Methods`, `3.1 Data`."""


def candidate_in(lines: Sequence[str], first: int, last: int, *, begins_page: bool) -> Candidate | None:
    """What the paragraph of the lines from `first` to `last` (exclusive) could begin with. Lines are as in the text."""
    own = [line.strip() for line in lines[first : min(last, first + _MOST_TITLE_LINES + 1)]]
    line, count = own[0], last - first
    if underlined := _underlined(own):
        return underlined
    if len(line) > _MOST_NAMED_CHARS or is_page_number(line) or _ENTRY_OF_CONTENTS.fullmatch(line):
        return None
    is_alone = count == 1
    if 1 < count <= _MOST_TITLE_LINES and sum(map(len, own)) <= _MOST_NAMED_CHARS and _is_one_title(own):
        line, is_alone = " ".join(own), True
    if is_alone or _stands_apart(lines[first], lines[first + 1]):
        title, length = " ".join(line.split()), count if is_alone else 1
        if found := _named(line) or _numbered(line):
            is_strong = found[0].startswith("named") or is_capital(line)
            number = number_of(line)
            return Candidate(*found, title, length, is_strong, number, needs_parts=bool(_UNMARKED.match(line)))
        if is_capital(line) and _could_be_capitals(line):
            return Candidate("capitals", _CAPITALS_RANK, title, length, not line.endswith(":"))
        if count == 1 and _could_be_short(line):
            return Candidate("short", _SHORT_RANK, title, 1, False)
    if begins_page and _could_be_short(line):
        return Candidate("page", _PAGE_RANK, " ".join(line.split()), 1, True)
    return None


def number_of(line: str) -> Number | None:
    """What a line is numbered with, be it a heading or the beginning of a sentence."""
    line = line.strip()[:_MOST_NAMED_CHARS]
    if found := _NAMED.fullmatch(line):
        number = found["number"].rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") or found["number"]
        value = _value(number)
        return (found["name"].lower(), value) if value else None
    found = _NUMBERED.match(line)
    if not found:
        return None
    value = _value(found["number"])
    kind = "number" if found["number"][0].isdigit() else "letter" if len(found["number"]) == 1 else "roman"
    return (kind, value) if value else None


def is_title_like(lines: Sequence[str]) -> bool:
    """Whether a paragraph is so short that it begins no part of its own with a sentence."""
    return len(lines) == 1 and len(line := lines[0].strip()) <= _MOST_SHORT_CHARS and not line.endswith(".")


def is_page_number(line: str) -> bool:
    """Whether a line holds a page's number alone."""
    return len(line) <= _MOST_CHARS and bool(_PAGE_NUMBER.fullmatch(line))


def is_prose(lines: Sequence[str]) -> bool:
    """Whether a paragraph is made of sentences: long enough, in lines that are wrapped or not broken at all."""
    own = [line.strip() for line in lines[:20]]
    sample = " ".join(own)[:2_000]
    return (
        len(sample) >= 80
        and len(sample) >= 32 * len(own)
        and len(_WORD.findall(sample)) >= 10
        and 2 * sum(character.islower() for character in sample) >= len(sample)
        and not any(_COLUMNS.search(line[:200]) for line in own[:3])
    )


def is_capital(line: str) -> bool:
    """Whether a line has letters, all of them capitals."""
    letters = [character for character in line[:500] if character.isalpha()]
    return len(letters) > 1 and not any(character.islower() for character in letters)


def indent_of(line: str) -> int:
    """Columns before a line's text; a form feed takes none."""
    return len(line[: len(line) - len(line.lstrip())].replace("\f", "").expandtabs(_TAB_COLUMNS))


def _value(number: str) -> tuple[int, ...]:
    if number[0].isdigit():
        return tuple(map(int, number.split(".")))
    if len(number) == 1 and number not in "IVX":
        return (ord(number) - ord("A") + 1,)
    values = [{"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}.get(letter, 0) for letter in number]
    if not all(values):
        return ()
    return (sum(-v if v < following else v for v, following in zip(values, [*values[1:], 0], strict=True)),)


def _underlined(own: Sequence[str]) -> Candidate | None:
    """A title above a line of one mark, or between two."""
    is_boxed = len(own) >= 3 and _UNDERLINE.fullmatch(own[0]) and own[2][0] == own[0][0]
    title, line = own[1:3] if is_boxed else [*own[:2], ""][:2]
    if len(title) > _MOST_CHARS or not _UNDERLINE.fullmatch(line) or _UNDERLINE.fullmatch(title):
        return None
    is_near = is_boxed or abs(len(line) - len(title)) <= 3
    if (
        not is_near
        or not _WORD.search(title)
        or _STATEMENT.search(title)
        or _COLUMNS.search(title)
        or title.endswith((",", ";"))
    ):
        return None
    rank = _BOXED_RANK if is_boxed else _UNDERLINE_RANKS.get(line[0], _OTHER_UNDERLINE_RANK)
    return Candidate(f"underlined {line[0]}", rank, " ".join(title.split()), 3 if is_boxed else 2, True)


def _is_one_title(own: Sequence[str]) -> bool:
    """Whether some lines are one title: all in capitals, or a name and number with a title below."""
    if all(is_capital(line) and not _COLUMNS.search(line) and ":" not in line for line in own):
        return not any(_NUMBERED.match(line) or _NAMED.match(line) for line in own[1:])
    if len(own) == 2 and len(own[0]) >= _WRAPPED_CHARS and _NUMBERED.match(own[0]):
        return not own[1].endswith(".") and len(own[1]) < len(own[0])
    named = _NAMED.fullmatch(own[0])
    return bool(named and not named["rest"] and len(own) == 2 and _could_be_short(own[1]))


def _stands_apart(first: str, second: str) -> bool:
    """Whether a first line is set off: in capitals above deeper text, or numbered above a part of its own."""
    numbered = _NUMBERED.match(first.strip()[:_MOST_NAMED_CHARS])
    if not is_capital(first):
        return bool(numbered and second.strip().startswith(f"{numbered['number']}."))
    if is_capital(second):
        return False
    is_marked = bool(numbered or _NAMED.match(first.strip()[:_MOST_NAMED_CHARS]))
    return is_marked or (indent_of(second) > indent_of(first) and len(first.strip()) <= _MOST_CHARS // 2)


def _named(line: str) -> tuple[str, int] | None:
    found = _NAMED.fullmatch(line)
    if not found or (_COLUMNS.search(line) and not found["mark"]):
        return None
    rest = found["rest"] or ""
    if rest and not (rest[0].isupper() or rest[0] in "([\"“'‘«¿–—-" or is_capital(rest)):
        return None
    if rest.endswith((",", ";")) or (rest.endswith(".") and len(rest.split()) > 10) or _is_sentences(rest):
        return None
    name = found["name"].lower()
    return f"named {name}", max(_NAMES[name], _DOTTED_NAME_RANK if "." in found["number"] else 0)


def _numbered(line: str) -> tuple[str, int] | None:
    """Style and rank of a numbered title, by its depth."""
    found = _NUMBERED.fullmatch(line)
    if not found or len(line) > _MOST_CHARS + 30:
        return None
    number, rest = found["number"], found["rest"]
    code = _CODE if number.isdigit() else _STATEMENT
    if code.search(rest) or _COLUMNS.search(rest) or _DAY.search(line) or not _WORD.search(rest):
        return None
    words = len(rest.split())
    if not is_capital(rest) and (
        found["mark"] == ")"
        or not (rest[0].isupper() or rest[0] in '("“¿')
        or rest.endswith((",", ";", ":"))
        or (rest.endswith(".") and words > 5)
        or words > 12
        or _is_sentences(rest)
    ):
        return None
    depth = number.count(".") + 1
    if number[0].isdigit():
        return f"numbered {depth}", min(_CAPITALS_RANK - 10 + 10 * depth, 80)
    return ("lettered", _LETTERED_RANK) if len(number) == 1 and number not in "IVX" else ("roman", _ROMAN_RANK)


def _is_sentences(text: str) -> bool:
    """Whether there is a full stop inside, before another sentence."""
    return bool(_SENTENCES.search(text))


def _could_be_capitals(line: str) -> bool:
    words = line.split()
    letters = sum(character.isalpha() for character in line)
    marks = sum(not character.isspace() for character in line)
    return (
        letters >= 4
        and 10 * letters >= 6 * marks
        and len(line) <= _MOST_CHARS
        and len(words) <= 14
        and not line.endswith((".", ",", ";", "!"))
        and not _CODE.search(line)
        and not _COLUMNS.search(line)
        and not _DAY.search(line)
        and not _FORMULA.match(line)
        and ":" not in line[:-1]
        and max(map(len, words)) >= 3
    )


def _could_be_short(line: str) -> bool:
    words = line.split()
    return (
        4 <= len(line) <= _MOST_SHORT_CHARS
        and len(words) <= 9
        and line[0].isalpha()
        and line[0].isupper()
        and (line[-1].isalnum() or line[-1] in ")?”\"'’")
        and bool(_WORD.search(line))
        and not _CODE.search(line)
        and not re.search(r"\S\s{2,}\S|\t|:", line)
        and not _DAY.search(line)
        and not _FORMULA.match(line)
        and not _is_sentences(line)
        and line.count(",") <= 1
        and not words[-1][-1].isdigit()
    )
