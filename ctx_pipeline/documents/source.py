"""Finding documents: walk a source, trust size and mtime, hash only what moved."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pathspec import GitIgnoreSpec

from ctx_pipeline.errors import PermanentError, TransientError
from ctx_pipeline.settings import SourceSettings

RACY_NS = 2_000_000_000
"""A file written within this time before it was read may be written again without a visible change of mtime: FAT
keeps two seconds, kernels stamp by a tick of up to 10 ms. Such files are hashed again."""


class Known(Protocol):
    """What the ledger remembers of a file."""

    @property
    def size(self) -> int: ...
    @property
    def mtime_ns(self) -> int: ...
    @property
    def read_at_ns(self) -> int: ...


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A document's file as a scan found it."""

    doc_id: str
    path: str
    size: int
    mtime_ns: int
    max_bytes: int
    content_hash: str | None = None
    """Present when the scan had to hash the file; None means: as the ledger knows it, or not looked at."""
    moved: bool = True
    """False when size and mtime are those the ledger knows and the file was not hashed."""
    scanned_at_ns: int = 0


@dataclass(slots=True)
class SourceScan:
    """One walk over one source."""

    name: str
    files: dict[str, FoundFile] = field(default_factory=dict)
    unreachable: str = ""
    """Why the root could not be listed; then nothing is known about its documents."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Folders that could not be listed, as doc_id prefixes ending in `/`, with the reason."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Entries that match but are never followed or named, with the reason."""

    def covers(self, doc_id: str) -> bool:
        """Whether the absence of `doc_id` from `files` means that the document is gone."""
        return not self.unreachable and not any(doc_id.startswith(prefix) for prefix in self.unreadable)


def scan(source: SourceSettings, known: Mapping[str, Known], *, verify: bool = False) -> SourceScan:
    """Walk `source`; files that moved since `known` (or all, with `verify`) are hashed.

    Symbolic links to files are followed while they stay below the root; links to folders never are (they loop, and
    make a document twice). Other special files are left alone. Problems are in the result, never exceptions.
    """
    found = SourceScan(source.name)
    root = source.path
    real_root = os.path.realpath(root)
    include, exclude = GitIgnoreSpec.from_lines(source.include), GitIgnoreSpec.from_lines(source.exclude)
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            entries = sorted(_list(root / folder), key=lambda entry: entry.name)
        except OSError as error:
            reason = error.strerror or str(error)
            if not folder:
                found.unreachable = f"{root}: {reason}"
                return found
            found.unreadable[f"{source.name}/{_printable(folder)}"] = reason
            continue
        for entry in entries:
            relative = folder + entry.name
            try:
                if entry.is_dir(follow_symlinks=False):
                    if not exclude.match_file(relative + "/"):
                        pending.append(relative + "/")
                    continue
                if not include.match_file(relative) or exclude.match_file(relative):
                    continue
                if entry.is_symlink():
                    reason = _link_problem(entry.path, real_root)
                    if reason:
                        found.skipped[f"{source.name}/{_printable(relative)}"] = reason
                        continue
                status = entry.stat()
            except FileNotFoundError:
                continue  # deleted since the folder was listed
            except OSError as error:
                found.unreadable[f"{source.name}/{_printable(relative)}"] = error.strerror or str(error)
                continue
            if not stat.S_ISREG(status.st_mode):
                found.skipped[f"{source.name}/{_printable(relative)}"] = "not a regular file"
                continue
            if not _is_text(relative):
                found.skipped[f"{source.name}/{_printable(relative)}"] = "its name is not valid UTF-8; rename it"
                continue
            doc_id = f"{source.name}/{relative}"
            found.files[doc_id] = _examine(doc_id, entry.path, status, source.max_bytes, known.get(doc_id), verify)
    return found


def read_bytes(file: FoundFile, root: Path) -> tuple[bytes, os.stat_result, int]:
    """The file's bytes, its status from the same open file, and when reading began (ns).

    Raises PermanentError when the file exceeds its source's `max_bytes`, TransientError when it cannot be read now.
    """
    started = time.time_ns()
    try:
        if not _inside(os.path.realpath(file.path), os.path.realpath(root)):
            raise PermanentError(f"{file.path} leads out of its source {root}; move the file below it")
        # Not blocking: a pipe put in the file's place must not hang the refresh.
        descriptor = os.open(file.path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(descriptor, "rb") as handle:
            status = os.fstat(handle.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise PermanentError(f"{file.path} is not a regular file")
            data = handle.read(file.max_bytes + 1)
    except OSError as error:
        raise TransientError(f"{file.path} cannot be read: {error.strerror or error}") from error
    if len(data) > file.max_bytes:
        raise PermanentError(
            f"{file.path} has {status.st_size:,} bytes, more than the {file.max_bytes:,} of its source's max_bytes; "
            "raise max_bytes, split the file or exclude it"
        )
    return data, status, started


def content_hash(data: bytes) -> str:
    """sha256 of a file's bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _list(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)


def _examine(
    doc_id: str, path: str, status: os.stat_result, max_bytes: int, known: Known | None, verify: bool
) -> FoundFile:
    now = time.time_ns()
    size, mtime_ns = status.st_size, status.st_mtime_ns
    make: Callable[..., FoundFile] = lambda **more: FoundFile(  # noqa: E731
        doc_id, path, size, mtime_ns, max_bytes, scanned_at_ns=now, **more
    )
    if known is None or known.size != size:
        return make()  # owed whatever the bytes are: reading them once, when they are parsed, is enough
    racy = mtime_ns > known.read_at_ns - RACY_NS
    if known.mtime_ns == mtime_ns and not racy and not verify:
        return make(moved=False)
    if size > max_bytes:
        return make(moved=known.mtime_ns != mtime_ns)
    try:
        with open(path, "rb") as handle:
            return make(content_hash=hashlib.file_digest(handle, "sha256").hexdigest())
    except OSError:
        return make(content_hash="")  # equal to no content, so owed: the read that follows reports why it fails


def _link_problem(path: str, real_root: str) -> str:
    try:
        target = os.path.realpath(path, strict=True)
    except OSError as error:
        return f"a symbolic link that leads nowhere ({error.strerror or error})"
    if not _inside(target, real_root):
        return "a symbolic link out of the source"
    return "a symbolic link to a folder" if os.path.isdir(target) else ""  # noqa: PTH112


def _inside(path: str, root: str) -> bool:
    return path.startswith(root.rstrip(os.sep) + os.sep)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _printable(name: str) -> str:
    return name.encode(errors="backslashreplace").decode()
