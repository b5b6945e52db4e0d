"""What a source leaves out by itself: folders of tools and environments by their name, and what .gitignore says."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader

from ctx_pipeline.documents.patterns import Exclude, Include
from ctx_pipeline.settings import SourceSettings

GITIGNORE = ".gitignore"
FOLDER_NAMES = frozenset({"node_modules", "__pycache__"})
MARKERS = frozenset({"pyvenv.cfg", "CACHEDIR.TAG"})
"""Files whose presence tells that a folder is an environment or a cache."""

MOST_STARS = 3
"""Wildcards `*` in one name of a pattern, and `**` in all of it: each more multiplies the time by the name's length."""

LARGEST_BYTES = 10_000_000
"""Of a .gitignore: a larger one is a mistake, and reading it would take memory without end."""

_STARS = re.compile(r"\*+")


@dataclass(frozen=True, slots=True)
class GitIgnore:
    """The .gitignore files that speak of the entries of a folder, each with its folder, the deepest first."""

    files: tuple[tuple[str, Exclude], ...] = ()

    def with_file(self, folder: str, data: bytes) -> GitIgnore:
        """With the file of `folder`, which is empty for the root and ends in a slash else.

        Names are bytes for git: what is not UTF-8 is kept as the names of files that are not.
        """
        lines = data.removeprefix(b"\xef\xbb\xbf").decode(errors="surrogateescape").split("\n")
        return GitIgnore(((folder, Exclude(_usable(line.removesuffix("\r")) for line in lines)), *self.files))

    def names(self, path: str, *, folder: bool) -> str:
        """The .gitignore by which the entry is left out, as a path below the root; empty when none leaves it out."""
        for place, patterns in self.files:
            verdict = patterns.verdict(path[len(place) :], folder=folder)
            if verdict is not None:
                return place + GITIGNORE if verdict else ""
        return ""


class Selection:
    """The include and exclude patterns of a source."""

    def __init__(self, source: SourceSettings) -> None:
        self.include, self.exclude = Include(source.include, any_case=True), Exclude(source.exclude)

    def is_excluded(self, relative: str, *, folder: bool) -> bool:
        """Whether `exclude` leaves out an entry, or a folder above it."""
        above = (relative[:at] for at, letter in enumerate(relative) if letter == "/")
        return any(self.exclude.matches_folder(place) for place in above) or bool(
            self.exclude.verdict(relative, folder=folder)
        )


def why_left_out(name: str, relative: str, gitignore: GitIgnore, *, folder: bool) -> str:
    """What leaves out an entry that `exclude` says nothing of; empty when nothing does."""
    if folder and name in FOLDER_NAMES:
        return f"a folder named {name}"
    return gitignore.names(relative, folder=folder)


def _usable(line: str) -> str:
    """The line, or nothing for a pattern whose wildcards would take an expression beyond any time to rule out."""
    segments = line.split("/")
    is_slow = (
        max(len(_STARS.findall(segment)) for segment in segments) > MOST_STARS or segments.count("**") > MOST_STARS
    )
    return "" if is_slow else line


def read_gitignore(path: str, opener: Callable[[str], BufferedReader]) -> bytes:
    """The bytes of a .gitignore; none when it is no regular file or has just gone. Raises OSError naming it."""
    try:
        with opener(path) as handle:
            data = handle.read(LARGEST_BYTES + 1)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise OSError(error.errno, f"{GITIGNORE}: {error.strerror or error}") from error
    if len(data) > LARGEST_BYTES:
        raise OSError(errno.EFBIG, f"{GITIGNORE}: larger than {LARGEST_BYTES:,} bytes")
    return data
