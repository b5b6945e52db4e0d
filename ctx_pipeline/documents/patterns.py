"""Include and exclude patterns, as in .gitignore, for names of any characters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

_EXTENSION = re.compile(r"(?<=\.)[^\W_]+(?=\s*$)")
"""What a pattern ends in after its last dot, when no wildcard is in it."""

_EXTENSION_GLOB = re.compile(r"\*\.[a-z0-9]+", re.IGNORECASE | re.ASCII)
_PLAIN = r"[^*?\[\]\\/\s!#]+"
_SIMPLE = re.compile(
    rf"(?P<negated>!?)(?:(?P<name>{_PLAIN})|\*(?P<ending>{_PLAIN})|(?P<beginning>{_PLAIN})\*"
    rf"|(?P<path>/{_PLAIN}|/?{_PLAIN}(?:/{_PLAIN})+))(?P<folder>/?)"
)
"""Patterns that need no expression: a name, the end or the beginning of one, and a path from the folder on."""


class Include:
    """Patterns of what is wanted: a file matches by itself or by a folder above it.

    With `any_case` the extension that a pattern ends in matches in either case, and nothing else does: `/docs/*.md`
    wants docs/Guide.MD, and no Docs/.
    """

    def __init__(self, patterns: Iterable[str], *, any_case: bool = False) -> None:
        lines = list(patterns)
        self._spec = GitIgnoreSpec.from_lines(_in_any_case(line) if any_case else line for line in lines)
        ends = [line[1:].lower() for line in lines if any_case and _EXTENSION_GLOB.fullmatch(line)]
        self._ends = () if any(line.startswith("!") for line in lines) else tuple(ends)

    def matches(self, path: str) -> bool:
        """Whether the file is wanted; `path` is relative to the source, with slashes."""
        return bool(self.verdict(path))

    def verdict(self, path: str) -> bool | None:
        """True when the file is wanted, False when a pattern with `!` takes it out, None when no pattern names it."""
        if path.lower().endswith(self._ends):
            return True  # as most files, without asking expressions
        return self._spec.check_file(_matchable(path)).include


class _Rule(NamedTuple):
    order: int
    names: bool
    """False for a pattern with `!`."""
    folders_only: bool
    pattern: Any = None


class Exclude:
    """Patterns of what is left out, asked about folders before what is in them, as git does.

    The last pattern that matches the entry itself decides, so that `*` and then `!guides/` leaves guides/ in but not
    guides/.cache/. (`GitIgnoreSpec` judges a path by itself and all folders above it at once: there a re-included
    folder would bring back everything in it.) Most patterns are plain names, ends or beginnings, which are looked up:
    expressions for all of them would take longer than the walk that asks.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        """A line that is no pattern names nothing, as for git."""
        self._names: dict[str, list[_Rule]] = {}
        self._paths: dict[str, list[_Rule]] = {}
        self._ends: dict[str, list[_Rule]] = {}
        self._beginnings: dict[str, list[_Rule]] = {}
        self._others: list[_Rule] = []
        for order, line in enumerate(patterns):
            self._add(order, line)
        self._any_end, self._any_beginning = tuple(self._ends), tuple(self._beginnings)
        self._others.reverse()

    def _add(self, order: int, line: str) -> None:
        simple = _SIMPLE.fullmatch(line)
        if simple is None:
            if line.endswith("**/"):  # folders below; GitIgnoreSpec takes in the one that the pattern begins with
                line += "*/"
            try:
                pattern = GitIgnoreSpecPattern(line)
            except (ValueError, re.error):
                return
            if pattern.include is not None:
                self._others.append(_Rule(order, bool(pattern.include), folders_only=False, pattern=pattern))
            return
        rule = _Rule(order, not simple["negated"], bool(simple["folder"]))
        kinds = ((self._names, "name"), (self._ends, "ending"), (self._beginnings, "beginning"), (self._paths, "path"))
        for table, kind in kinds:
            if simple[kind]:
                table.setdefault(simple[kind].removeprefix("/"), []).append(rule)

    def verdict(self, path: str, *, folder: bool) -> bool | None:
        """True when the entry is left out, False when `!` says that it is not, None when no pattern names it.

        `path` is relative to where the patterns stand, without a slash at its end.
        """
        name = path.rpartition("/")[2]
        last = self._last_looked_up(path, name, folder)
        if self._others:
            matchable, slash = _matchable(path), "/" if folder else ""
            for rule in self._others:
                if last is not None and rule.order < last.order:
                    break
                if _names(rule.pattern, matchable, slash):
                    return rule.names
        return None if last is None else last.names

    def _last_looked_up(self, path: str, name: str, folder: bool) -> _Rule | None:
        ends, begins = name.endswith(self._any_end), name.startswith(self._any_beginning)
        if not (ends or begins or name in self._names or path in self._paths):
            return None  # as most entries: asked of 100,000 of them
        rules = [*self._names.get(name, ()), *self._paths.get(path, ())]
        rules += (rule for end, own in self._ends.items() if name.endswith(end) for rule in own)
        rules += (rule for start, own in self._beginnings.items() if name.startswith(start) for rule in own)
        return max((rule for rule in rules if folder or not rule.folders_only), default=None)

    def matches_file(self, path: str) -> bool:
        """Whether the file is left out."""
        return bool(self.verdict(path, folder=False))

    def matches_folder(self, path: str) -> bool:
        """Whether the folder is left out, with everything below it; `path` has no slash at its end."""
        return bool(self.verdict(path, folder=True))


def _in_any_case(pattern: str) -> str:
    return _EXTENSION.sub(lambda match: "".join(map(_either_case, match[0])), pattern)


def _either_case(letter: str) -> str:
    low, high = letter.lower(), letter.upper()
    return f"[{low}{high}]" if low != high and len(low) == len(high) == 1 else letter


def _names(pattern: Any, path: str, slash: str) -> bool:
    """Whether a pattern names the entry, and not only a folder above it."""
    found = pattern.match_file(path + slash)
    if found is None:
        return False
    if found.match.lastindex is None:  # the only group is the slash after a folder that the pattern names
        return pattern.match_file(path) is not None
    any_folder = found.match.start() > 0  # the expression of `*/`, the only one that is not anchored
    return bool(slash) and (any_folder or found.match.end() == len(path + slash))


def _matchable(path: str) -> str:
    """The path without newlines, which would end what an expression sees."""
    return path.replace("\n", "\x1f")
