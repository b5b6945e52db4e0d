"""Include and exclude patterns, as in .gitignore, for names of any characters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pathspec import GitIgnoreSpec


class Include:
    """Patterns of what is wanted: a file matches by itself or by a folder above it."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._spec = GitIgnoreSpec.from_lines(patterns)

    def matches(self, path: str) -> bool:
        """Whether the file is wanted; `path` is relative to the source, with slashes."""
        return self._spec.match_file(_matchable(path))


class Exclude:
    """Patterns of what is left out, asked about folders before what is in them, as git does.

    The last pattern that matches the entry itself decides, so that `*` and then `!guides/` leaves guides/ in but not
    guides/.cache/. (`GitIgnoreSpec` judges a path by itself and all folders above it at once: there a re-included
    folder would bring back everything in it.)
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        spec = GitIgnoreSpec.from_lines(patterns)
        self._patterns = [pattern for pattern in reversed(list(spec.patterns)) if pattern.include is not None]

    def matches_file(self, path: str) -> bool:
        """Whether the file is left out."""
        return self._decide(_matchable(path), "")

    def matches_folder(self, path: str) -> bool:
        """Whether the folder is left out, with everything below it; `path` has no slash at its end."""
        return self._decide(_matchable(path), "/")

    def _decide(self, path: str, slash: str) -> bool:
        return next((bool(pattern.include) for pattern in self._patterns if _names(pattern, path, slash)), False)


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
