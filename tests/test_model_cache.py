"""The cache of built models: complete or absent, one builder at a time, and somewhere on every machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ctx_pipeline.embedding.model_cache import cached
from ctx_pipeline.errors import FatalError

CONTENT = b"model" * 1_000


class Builder:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> bytes:
        self.calls += 1
        return CONTENT


@pytest.fixture
def builder() -> Builder:
    return Builder()


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The system's temporary folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def private(temporary: Path) -> Path:
    return temporary / f"ctx_pipeline-{os.getuid()}"


@pytest.fixture
def unusable_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home in which no folder can be made, whoever runs the test: it is a file."""
    home = tmp_path / "home"
    home.touch()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return home


def test_a_file_is_built_once(tmp_path: Path, builder: Builder) -> None:
    assert [cached("m", builder, tmp_path / "a" / "b") for _ in range(3)] == [CONTENT] * 3
    assert builder.calls == 1


def truncated(stored: bytes) -> bytes:
    return stored[:-1]


def emptied(stored: bytes) -> bytes:
    return b""


def digest_only(stored: bytes) -> bytes:
    return stored[:32]


def flipped(stored: bytes) -> bytes:
    return stored[:2_000] + bytes([stored[2_000] ^ 1]) + stored[2_001:]


@pytest.mark.parametrize("damage", [truncated, emptied, digest_only, flipped])
def test_a_damaged_file_is_built_again(tmp_path: Path, builder: Builder, damage: Callable[[bytes], bytes]) -> None:
    cached("m", builder, tmp_path)
    path = tmp_path / "m"
    intact = path.read_bytes()
    path.write_bytes(damage(intact))
    assert cached("m", builder, tmp_path) == CONTENT
    assert builder.calls == 2
    assert path.read_bytes() == intact


def test_a_build_that_fails_leaves_nothing(tmp_path: Path, builder: Builder) -> None:
    def fail() -> bytes:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        cached("m", fail, tmp_path)
    assert not (tmp_path / "m").exists()
    assert cached("m", builder, tmp_path) == CONTENT


def test_a_killed_build_is_neither_used_nor_left_behind(tmp_path: Path, builder: Builder) -> None:
    # The child stops between writing its temporary file and renaming it, says so, and waits to be killed.
    code = (
        "import os, sys; from pathlib import Path; from ctx_pipeline.embedding.model_cache import cached\n"
        "def stop(file):\n    print('written', flush=True)\n    sys.stdin.read()\n"
        "os.fsync = stop\n"
        "cached('m', lambda: b'half', Path(sys.argv[1]))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "written\n"
        assert [path.name for path in tmp_path.glob("m*.tmp")] == [f"m.{child.pid}.tmp"]
        os.kill(child.pid, signal.SIGKILL)
    assert cached("m", builder, tmp_path) == CONTENT
    assert not list(tmp_path.glob("*.tmp"))


def test_who_waits_for_a_builder_takes_its_file(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ctx_pipeline.embedding.model_cache import cached\n"
        "def build():\n    print('built', flush=True)\n    return b'x' * 1_000_000\n"
        "assert len(cached('m', build, Path(sys.argv[1]))) == 1_000_000"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    said = [child.communicate()[0] for child in children]
    assert [child.returncode for child in children] == [0] * 4
    assert sorted(said) == ["", "", "", "built\n"]


@pytest.mark.parametrize(
    ("variable", "value", "folder"),
    [
        ("CTX_CACHE_DIR", "own", "own"),
        ("XDG_CACHE_HOME", "xdg", "xdg/ctx_pipeline"),
        ("HOME", "h", "h/.cache/ctx_pipeline"),
    ],
)
def test_where_the_cache_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builder: Builder, variable: str, value: str, folder: str
) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "CTX_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path / value))
    cached("m", builder, None)
    assert (tmp_path / folder / "m").is_file()


@pytest.mark.parametrize("variable", ["HOME", "XDG_CACHE_HOME", "CTX_CACHE_DIR"])
def test_without_a_usable_home_a_private_temporary_folder_serves(
    unusable_home: Path, private: Path, monkeypatch: pytest.MonkeyPatch, builder: Builder, variable: str
) -> None:
    monkeypatch.setenv(variable, str(unusable_home))
    assert [cached("m", builder, None) for _ in range(2)] == [CONTENT] * 2
    assert builder.calls == 1
    assert private.stat().st_mode & 0o777 == 0o700


def test_a_temporary_folder_open_to_others_is_refused(unusable_home: Path, private: Path, builder: Builder) -> None:
    private.mkdir()
    private.chmod(0o755)
    with pytest.raises(FatalError, match=r"not a private folder of this user.*CTX_CACHE_DIR"):
        cached("m", builder, None)


def test_a_link_in_place_of_the_temporary_folder_is_refused(
    unusable_home: Path, private: Path, tmp_path: Path, builder: Builder
) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    private.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FatalError, match="not a private folder of this user"):
        cached("m", builder, None)


def test_without_any_usable_folder_the_remedy_is_named(unusable_home: Path, private: Path, builder: Builder) -> None:
    private.touch()
    with pytest.raises(FatalError, match=r"CTX_CACHE_DIR or embedding\.path"):
        cached("m", builder, None)


def test_a_folder_that_was_asked_for_has_no_substitute(tmp_path: Path, temporary: Path, builder: Builder) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FatalError, match=r"file cannot be used.*embedding\.path"):
        cached("m", builder, tmp_path / "file")
    assert not list(temporary.iterdir())
