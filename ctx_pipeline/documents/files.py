"""Files of documents: opened without following what took their place, read within the bound of their source."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from io import BufferedReader
from pathlib import Path
from typing import Protocol

from ctx_pipeline.errors import PermanentError, TransientError

_LEADS_NOWHERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


class BoundedFile(Protocol):
    """A file, and how much of it may be read."""

    @property
    def path(self) -> str: ...
    @property
    def max_bytes(self) -> int: ...


def read_bytes(file: BoundedFile, root: Path) -> tuple[bytes, os.stat_result, int]:
    """The file's bytes, its status from the same open file, and when reading began (ns).

    Raises PermanentError when the file exceeds its source's `max_bytes`, TransientError when it cannot be read now:
    also when something else took its place since the scan, which the next scan will tell.
    """
    started = time.time_ns()
    try:
        if not is_inside(os.path.realpath(file.path), os.path.realpath(root)):
            raise TransientError(f"{file.path} leads out of its source {root}; move the file below it")
        with open_regular(file.path) as handle:
            status = os.fstat(handle.fileno())
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


def open_regular(path: str) -> BufferedReader:
    """Open a regular file. Not blocking: a pipe put in the file's place must not hang the refresh."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return open(descriptor, "rb")


def is_inside(path: str, root: str) -> bool:
    """Whether a resolved path is below a resolved folder."""
    return path.startswith(root.rstrip(os.sep) + os.sep)


def link_problem(path: str, real_root: str) -> str:
    """Why a link is not followed, if so. Raises OSError when that cannot be told now."""
    try:
        target = os.path.realpath(path, strict=True)
    except OSError as error:
        if error.errno in _LEADS_NOWHERE:
            return f"a symbolic link that leads nowhere ({error.strerror})"
        raise
    return "" if is_inside(target, real_root) else "a symbolic link out of the source"
