"""Filters: the rows that a search may find, given as SQL or as plain values, read whole or refused."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ctx_pipeline.errors import QueryError
from ctx_pipeline.index.lancedb_errors import LegError, lancedb_errors, within
from ctx_pipeline.index.tables import sql_literal

FILTER_SECONDS = 10.0
"""How long a search with a filter may take, apart from the embedding of the query."""

MAX_TOKENS_IN_A_ROW = 400
"""Between two ANDs, ORs or commas. LanceDB plans operators by recursion and is killed by the system where they are
nested too deep (between 600 and 2,000 tokens of `id + id + ...`); chains of AND and OR and lists may be long."""

SHOWN_CHARACTERS = 300
"""Of a filter in a message."""

Value = str | int | float | bool | None
Filters = Mapping[str, Value | Sequence[Value]]
"""Columns with the value they must have, or the values of which they must have one."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A filter that LanceDB reads whole."""

    sql: str
    shown: str
    """The filter as it was given, for messages."""
    seconds: float
    """What is left of the time limit for the search itself."""

    def refused(self, reason: str) -> QueryError:
        """The error that names the filter."""
        return _refused(self.shown, reason)

    def too_slow(self) -> QueryError:
        """The error of a search that took too long."""
        return _too_slow(self.shown)


def read_filter(table: Any, where: str | None, filters: Filters | None) -> Condition | None:
    """The condition that both filters make together, None where neither is given.

    Raises QueryError when `where` is anything but one whole condition, or a filter names what the table does not have.
    """
    if where is None and filters is None:
        return None
    started = time.monotonic()
    shown = " and ".join(_short(repr(given)) for given in (where, filters) if given is not None)
    names = table.schema.names
    try:
        parts = [] if where is None else [_enclosed(where)]
        parts += [_equality(table.schema, column, value) for column, value in (filters or {}).items()]
        sql = " AND ".join(parts) or "true"
        within(FILTER_SECONDS, lambda: _plan(table, *dict.fromkeys([*parts[:1], sql])))
    except _UnreadableError as error:
        raise _refused(shown, str(error)) from None
    except TimeoutError:
        raise _too_slow(shown) from None
    except LegError as error:
        _plan(table, "true")  # where that cannot be read either, no filter is to blame
        raise _refused(shown, _told(str(error), names)) from error
    return Condition(sql, shown, max(0.0, FILTER_SECONDS - (time.monotonic() - started)))


class _UnreadableError(Exception):
    """Says what of a filter cannot be read."""


def _plan(table: Any, *conditions: str) -> None:
    """Have LanceDB read conditions without running them."""
    with lancedb_errors():
        for sql in conditions:
            table.search().where(sql).limit(1).explain_plan()


# SQL --------------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""(?P<quoted>'(?:[^']|'')*+'|"(?:[^"]|"")*+"|`(?:[^`]|``)*+`)"""
    r"""|(?P<unclosed>['"`])|(?P<comment>--|/\*)|(?P<placeholder>[?$])"""
    r"""|(?P<opening>[(\[{])|(?P<closing>[)\]}])|(?P<word>\w+)|(?P<other>[^\s\w])"""
)
_PAIRS = {")": "(", "]": "[", "}": "{"}


def _enclosed(where: str) -> str:
    """The filter in parentheses, which LanceDB reads whole or refuses.

    LanceDB reads the first complete expression of a text and drops what follows without a word: `a = 1) OR (1 = 1` is
    `a = 1` for it. After an opening parenthesis it must find a closing one behind the expression; as the brackets of
    the text itself are balanced and no comment hides any, that can only be ours, behind the last word.
    """
    if not where.strip():
        raise _UnreadableError("it is empty; leave it out to search all rows")
    opened: list[str] = []
    tokens = list(_TOKEN.finditer(where))
    for token in tokens:
        text, at = token[0], f"at character {token.start() + 1}"
        match token.lastgroup:
            case "unclosed":
                raise _UnreadableError(f"the quote {text} {at} is not closed; a quote inside a text is doubled")
            case "comment":
                raise _UnreadableError(f"the comment {text} {at} is no part of a condition")
            case "placeholder":
                raise _UnreadableError(f"{text} {at} stands for no value; filters= of Python takes values without SQL")
            case "opening":
                opened.append(text)
            case "closing" if not opened or opened.pop() != _PAIRS[text]:
                raise _UnreadableError(f"{text} {at} closes nothing")
    if opened:
        raise _UnreadableError(f"{opened[-1]} is not closed")
    if _longest_row(tokens) > MAX_TOKENS_IN_A_ROW:
        raise _UnreadableError(
            f"more than {MAX_TOKENS_IN_A_ROW} operators and values without AND, OR or a comma between"
        )
    return f"({where})"


def _longest_row(tokens: Iterable[re.Match[str]]) -> int:
    """The most tokens without AND, OR or a comma between them, brackets counted as if they were not there."""
    rows, longest, betweens = [(0, 0)], 0, 0
    for token in tokens:
        now, before = rows[-1]
        word = token[0].upper()
        if token.lastgroup == "opening":
            rows.append((0, 0))
        elif token.lastgroup == "closing":
            rows.pop()
            outer, before_outer = rows[-1]
            rows[-1] = (outer + max(now, before), before_outer)
        elif word in ("OR", ",") or (word == "AND" and not betweens):
            rows[-1] = (0, max(now, before))
        else:
            betweens += (word == "BETWEEN") - (word == "AND")
            rows[-1] = (now + 1, before)
        longest = max(longest, *rows[-1])
    return longest


_NO_COLUMN = re.compile(r"No field named (.+?)\. (?:Valid|Column|Did)")
_PARSER = re.compile(r"sql parser error: (.*?)\)?$")
_LEFT_OVER = re.compile(r"Expected: [)\]], found: (.+)")


def _told(message: str, names: Iterable[str]) -> str:
    """What LanceDB says of a filter, in the words of one who wrote it."""
    if found := _NO_COLUMN.search(message):
        return f"the index has no column {found[1]}; its columns are {', '.join(names)}"
    reason = found[1] if (found := _PARSER.search(message)) else message
    if found := _LEFT_OVER.match(reason):
        return f"{found[1]} follows on a condition that is complete without it"
    if reason.endswith("found: )"):
        return "the condition is not complete"
    return reason


# Values -----------------------------------------------------------------------------------------------------------


def _equality(schema: pa.Schema, column: str, value: Value | Sequence[Value]) -> str:
    """SQL that the column has the value, or one of the values."""
    if column not in schema.names:
        raise _UnreadableError(
            f"the index has no column {column!r}; its columns are {', '.join(schema.names)} "
            "(front matter is in metadata, as JSON, for where=)"
        )
    kind = schema.field(column).type
    if value is None or isinstance(value, str | int | float):
        return _has(column, kind, value)
    if not isinstance(value, list | tuple | set | frozenset):
        raise _UnreadableError(f"{column}: {value!r} is not a text, number, bool, None or a list of such")
    return f"({' OR '.join(_has(column, kind, item) for item in value)})" if value else "false"


def _has(column: str, kind: pa.DataType, value: Value) -> str:
    name = f"`{column}`"
    if value is None:
        return f"{name} IS NULL"
    if pa.types.is_list(kind) and pa.types.is_string(kind.value_type) and isinstance(value, str):
        return f"array_has({name}, {sql_literal(value)})"
    if pa.types.is_string(kind) and isinstance(value, str):
        return f"{name} LIKE {sql_literal(_like(value))}" if "*" in value else f"{name} = {sql_literal(value)}"
    if pa.types.is_boolean(kind) and isinstance(value, bool):
        return f"{name} = {str(value).lower()}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        whole = isinstance(value, int) or value.is_integer()
        if pa.types.is_integer(kind) and whole and abs(value) < 2**63:
            return f"{name} = {int(value)}"
        if pa.types.is_floating(kind) and abs(value) < math.inf:
            return f"{name} = {value!r}"
    raise _UnreadableError(f"{column} holds {kind}, which {value!r} is not")


def _like(pattern: str) -> str:
    """A LIKE pattern in which only `*` stands for anything."""
    return re.sub(r"[\\%_]", r"\\\g<0>", pattern).replace("*", "%")


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _refused(shown: str, reason: str) -> QueryError:
    return QueryError(f"the search failed, check the filter {shown}: {reason}")


def _too_slow(shown: str) -> QueryError:
    return QueryError(
        f"the search was given up after {FILTER_SECONDS:g} s; a simpler filter than {shown} takes less time"
    )
