"""Files that are expensive to derive, built once and kept below a cache folder.

A file is the sha256 of its content followed by the content, so one rename puts both in place. It appears complete or
not at all, and whatever does not match its digest is built again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from ctx_pipeline.errors import FatalError

_LOCK_TIMEOUT_S = 120
_DIGEST_BYTES = hashlib.sha256().digest_size
_FOLDER_MODE, _FILE_MODE = 0o755, 0o644
"""Whatever the umask: a model is no secret, and is often built by one account, as of an image, for another."""

_log = logging.getLogger(__name__)


def cached(name: str, build: Callable[[], bytes], folder: Path | None) -> bytes:
    """Content of the cached file `name`, built first if it is missing or damaged.

    Looks in `folder`; without one in CTX_CACHE_DIR, else ctx_pipeline below XDG_CACHE_HOME or ~/.cache, and where that
    cannot be used (a read-only home) in a folder of this user below the system's temporary folder.
    Raises FatalError when no folder can be used.
    """
    remedy = "set CTX_CACHE_DIR or embedding.path to a folder that can be written"
    if folder is not None:
        try:
            return _read_or_build(folder, name, build)
        except OSError as error:
            raise FatalError(f"the model cache {folder} cannot be used: {error}; {remedy}") from error
    try:
        return _read_or_build(_default_folder(), name, build)
    except OSError as error:
        _log.info("The model cache cannot be used (%s): a temporary folder takes its place", error)
    try:
        return _read_or_build(_private_temporary_folder(), name, build)
    except OSError as error:
        raise FatalError(f"no folder for the model cache can be used: {error}; {remedy}") from error


def _default_folder() -> Path:
    if own := os.environ.get("CTX_CACHE_DIR"):
        return Path(own)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "ctx_pipeline"
    try:
        return Path.home() / ".cache" / "ctx_pipeline"
    except RuntimeError as error:
        raise OSError(f"no home folder: {error}") from error


def _private_temporary_folder() -> Path:
    """Anyone may write to the temporary folder: a folder prepared by another user could carry another model."""
    user = os.getuid()
    folder = Path(tempfile.gettempdir()) / f"ctx_pipeline-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or stat.S_IMODE(found.st_mode) & 0o077:
        raise FatalError(
            f"{folder} is not a private folder of this user (mode 0700): remove it, or set CTX_CACHE_DIR to a folder "
            "that can be written"
        )
    return folder


def _read_or_build(folder: Path, name: str, build: Callable[[], bytes]) -> bytes:
    from filelock import FileLock

    path = folder / name
    content = _read(path)
    if content is not None:
        return content
    _make_folder(folder)
    with FileLock(folder / f"{name}.lock", timeout=_LOCK_TIMEOUT_S):
        content = _read(path)
        if content is None:
            # Who holds the lock is the only builder: temporary files are those of builders that died.
            for leftover in folder.glob(f"{name}.*.tmp"):
                leftover.unlink()
            _log.info("Building %s", path)
            content = build()
            _write(path, content)
    return content


def _make_folder(folder: Path) -> None:
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        place.chmod(_FOLDER_MODE)


def _read(path: Path) -> bytes | None:
    try:
        stored = path.read_bytes()
    except FileNotFoundError:
        return None
    digest, content = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() == digest:
        return content
    _log.warning("%s is damaged and will be built again", path)
    return None


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(hashlib.sha256(content).digest())
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(_FILE_MODE)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
