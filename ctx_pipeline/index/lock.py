"""One writer: a lock per storage that the operating system frees when its holder dies."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from filelock import BaseFileLock, FileLock, Timeout

from ctx_pipeline.errors import LockHeldError, StorageError
from ctx_pipeline.private_files import FILE_MODE, make_folder, write

WAIT_S = 600.0
"""How long a writer waits for another one before it gives up."""
POLL_S = 0.2
CLOCK_TOLERANCE_S = 5.0
"""Start times are counted from a boot time that moves when the clock is set."""


@contextmanager
def storage_lock(uri: Path, purpose: str, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the storage's lock; `purpose` is what others are told while they wait.

    Raises LockHeldError naming the holder after `wait_s` seconds, StorageError when the folder cannot be written.
    """
    lock = _lock(uri)
    try:
        make_folder(uri)
        lock.acquire(timeout=wait_s, poll_interval=POLL_S)
        write(_holder_file(uri), json.dumps({**this_process(), "purpose": purpose, "since": time.time()}).encode())
    except Timeout:
        raise LockHeldError(
            f"the index at {uri} is being written by {holder(uri)}; wait for it to end, or stop it, and try again"
        ) from None
    except OSError as error:
        lock.release()
        raise StorageError(f"storage.uri {uri} cannot be written ({error.strerror or error})") from None
    try:
        yield
    finally:
        lock.release()


def is_locked(uri: Path) -> bool:
    """Whether some process holds the lock now."""
    if not _lock_file(uri).exists():
        return False
    lock = _lock(uri)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    except OSError:
        return False  # who may not write the lock file is in no writer's way
    lock.release()
    return False


def holder(uri: Path) -> str:
    """Who holds the lock, in words for a message."""
    try:
        found = json.loads(_holder_file(uri).read_text())
        return f"{found['purpose']} (process {found['pid']} on {found['host']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def this_process() -> dict[str, str]:
    """Identity of this process: host, pid and start time, since pids are used again."""
    return {"host": socket.gethostname(), "pid": str(os.getpid()), "started": str(_start_time(os.getpid()))}


def process_is_dead(identity: dict[str, str]) -> bool:
    """Whether the process of that identity is known to have ended; False for other hosts, which nobody can tell."""
    if identity["host"] != socket.gethostname():
        return False
    started = _start_time(int(identity["pid"]))
    return started is None or abs(started - float(identity["started"])) > CLOCK_TOLERANCE_S


def _start_time(pid: int) -> float | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return None


def _lock(uri: Path) -> BaseFileLock:
    return FileLock(_lock_file(uri), mode=FILE_MODE, thread_local=False)


def _lock_file(uri: Path) -> Path:
    return uri / ".writer.lock"


def _holder_file(uri: Path) -> Path:
    return uri / ".writer.json"
