"""Types of settings values, each checked when settings are read; a message says what is allowed."""

from __future__ import annotations

import calendar
import re
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

LARGEST = 2**31 - 1
"""Bound of every whole number: it fits where Arrow and operating systems keep 32 bits."""

FTS_LANGUAGES = (
    "Arabic", "Danish", "Dutch", "English", "Finnish", "French", "German", "Greek", "Hungarian", "Italian",
    "Norwegian", "Portuguese", "Romanian", "Russian", "Spanish", "Swedish", "Tamil", "Turkish",
)  # fmt: skip
"""The stemmers of LanceDB's full-text index, by the names it wants."""

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_CRON_FIELDS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _WEEKDAYS),
)
_CRON_PART = re.compile(r"(?:\*|(?P<first>[0-9a-z]+)(?:-(?P<last>[0-9a-z]+))?)(?:/(?P<step>[0-9]+))?")
_LONGEST_FEBRUARY = 2024


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _usable_path(value: object) -> object:
    if isinstance(value, str):
        if not value or "\0" in value:
            raise ValueError("must name a folder; it is empty or holds a NUL character")
        try:
            Path(value).expanduser()
        except RuntimeError:
            raise ValueError(f"there is no user of that name to expand {value!r}") from None
    return value


def _local(value: object) -> object:
    if isinstance(value, str) and "://" in value:
        raise ValueError(f"{value.partition('://')[0]}:// is not supported; only local folders are")
    return value


def _http_address(value: str) -> str:
    try:
        parts = urlsplit(value)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or re.search(r"\s", value):
        raise ValueError("must be an address that begins with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError(
            "must not hold a user or a password; a key belongs in the environment, such as CTX_EMBEDDING__API_KEY"
        )
    return value


def _different_languages(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if value not in FTS_LANGUAGES:
            raise ValueError(f"{value!r} is not one of {', '.join(FTS_LANGUAGES)}")
    if not values or len(set(values)) != len(values):
        raise ValueError("must name at least one language, and none twice")
    return values


def _pattern(value: str) -> str:
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([value])
    except (ValueError, re.error):
        raise ValueError(f"{value!r} is not a pattern as in .gitignore") from None
    return value


def _patterns(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        _pattern(value)
    return values


def _timezone(value: str) -> str:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{value!r} is not a time zone of the IANA database, such as Europe/Madrid") from None
    return value


def _cron(value: str) -> str:
    """Standard cron, a subset of what Dagster takes: what it would refuse, or never fire, is refused here.

    (Dagster raises for some of it only when its daemon looks for the next date.)
    """
    fields = value.split()
    if len(fields) != len(_CRON_FIELDS):
        raise ValueError(f"{value!r} is not a cron expression of five fields, such as '0 3 * * *'")
    meant = [_cron_field(text, *field) for text, field in zip(fields, _CRON_FIELDS, strict=True)]
    days, months = meant[2], meant[3]
    if min(days) > max(calendar.monthrange(_LONGEST_FEBRUARY, month)[1] for month in months):
        raise ValueError(f"{value!r} names a day that its months do not have")
    return value


def _cron_field(text: str, name: str, low: int, high: int, names: tuple[str, ...]) -> set[int]:
    allowed = f"{low}-{high}" + (f" or {names[0]}-{names[-1]}" if names else "")
    wrong = ValueError(f"cron: {text!r} is not a {name}: numbers {allowed}, lists 1,2, ranges 1-5, steps */2")

    def number(word: str) -> int:
        if word in names:
            return names.index(word) + low
        if not word.isdecimal() or not low <= int(word) <= high:
            raise wrong
        return int(word)

    found: set[int] = set()
    for part in text.lower().split(","):
        match = _CRON_PART.fullmatch(part)
        if match is None:
            raise wrong
        first = number(match["first"]) if match["first"] else low
        last = number(match["last"]) if match["last"] else high
        step = int(match["step"] or 1)
        if match["first"] and not match["last"] and not match["step"]:
            last = first
        elif not 1 <= step <= last - first:
            raise wrong  # Dagster would take a step beyond the range for another one
        found.update(range(first, last + 1, step))
    return found


Count = Annotated[int, Field(strict=True, ge=1, le=LARGEST)]
CountOrZero = Annotated[int, Field(strict=True, ge=0, le=LARGEST)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Weight = Annotated[float, Field(strict=True, ge=0, le=1000)]
Folder = Annotated[Path, BeforeValidator(_usable_path)]
StorageFolder = Annotated[Folder, BeforeValidator(_local)]
Address = Annotated[str, AfterValidator(_http_address)]
Languages = Annotated[tuple[str, ...], AfterValidator(_different_languages)]
Text = Annotated[str, Field(min_length=1, pattern=r"\S")]
Pattern = Annotated[Text, AfterValidator(_pattern)]
Patterns = Annotated[tuple[str, ...], AfterValidator(_patterns)]
Timezone = Annotated[str, AfterValidator(_timezone)]
Cron = Annotated[str, AfterValidator(_cron)]


def is_text(annotation: Any) -> bool:
    """Whether values of a type are written as plain text: strings, paths, secrets, each perhaps optional."""
    if get_origin(annotation) is Annotated:
        return is_text(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return any(map(is_text, get_args(annotation)))
    return annotation in (str, Path, SecretStr)
