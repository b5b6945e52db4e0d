"""One writer at a time: the lock is freed by the death of its holder, and who waits is told for whom."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ctx_pipeline.errors import LockHeldError, StorageError
from ctx_pipeline.index.lock import holder, is_locked, process_is_dead, storage_lock, this_process

HOLD = """
import json, sys
from pathlib import Path
from ctx_pipeline.index.lock import storage_lock, this_process
uri, log, name = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
print("trying", flush=True)
with storage_lock(uri, f"a refresh of {name}"):
    with log.open("a") as out: out.write(f"{name} in\\n")
    print(json.dumps(this_process()), flush=True)
    sys.stdin.readline()
    with log.open("a") as out: out.write(f"{name} out\\n")
"""


class Holder:
    """Another process that takes the lock and keeps it until it is let go or killed."""

    def __init__(self, uri: Path, log: Path, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(uri), str(log), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "trying"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def wait_until_held(self) -> dict[str, str]:
        """The identity that the process gives itself."""
        identity: dict[str, str] = json.loads(self._line())
        return identity

    def let_go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def uri(tmp_path: Path) -> Path:
    return tmp_path / "index"


@pytest.fixture
def start(uri: Path, tmp_path: Path) -> Iterator[Callable[[str], Holder]]:
    holders: list[Holder] = []

    def begin(name: str) -> Holder:
        holders.append(Holder(uri, tmp_path / "log", name))
        return holders[-1]

    yield begin
    for each in holders:
        each.end()


def test_who_comes_second_is_told_who_holds_it_and_what_to_do(uri: Path, start: Callable[[str], Holder]) -> None:
    other = start("one")
    other.wait_until_held()
    with pytest.raises(LockHeldError) as caught, storage_lock(uri, "a refresh", wait_s=0):
        pytest.fail("the lock was given twice")
    message = str(caught.value)
    for part in (str(uri), "a refresh of one", str(other.process.pid), socket.gethostname(), "wait for it to end"):
        assert part in message
    assert is_locked(uri)
    assert holder(uri) == f"a refresh of one (process {other.process.pid} on {socket.gethostname()})"


def test_a_killed_holder_frees_it(uri: Path, start: Callable[[str], Holder]) -> None:
    other = start("one")
    other.wait_until_held()
    other.kill()
    assert not is_locked(uri)
    with storage_lock(uri, "doctor", wait_s=0):
        assert holder(uri).startswith(f"doctor (process {os.getpid()} on ")


def test_the_waiter_gets_it_when_the_holder_is_done(uri: Path, tmp_path: Path, start: Callable[[str], Holder]) -> None:
    first = start("one")
    first.wait_until_held()
    second = start("two")
    first.let_go()
    second.wait_until_held()
    second.let_go()
    assert second.process.wait() == 0
    assert (tmp_path / "log").read_text().splitlines() == ["one in", "one out", "two in", "two out"]


def test_the_waiter_gets_it_when_the_holder_is_killed(
    uri: Path, tmp_path: Path, start: Callable[[str], Holder]
) -> None:
    first = start("one")
    first.wait_until_held()
    second = start("two")
    first.kill()
    second.wait_until_held()
    assert (tmp_path / "log").read_text().splitlines() == ["one in", "two in"]


def test_it_is_held_inside_and_free_before_and_after(uri: Path) -> None:
    assert not is_locked(uri)
    assert not uri.exists(), "asking creates nothing"
    with storage_lock(uri, "a refresh"):
        assert is_locked(uri)
    assert not is_locked(uri)
    assert not is_locked(uri), "asking leaves it free"


def test_an_error_inside_frees_it(uri: Path) -> None:
    with pytest.raises(ZeroDivisionError), storage_lock(uri, "a refresh"):
        raise ZeroDivisionError
    assert not is_locked(uri)


def test_it_is_not_given_twice_to_one_process_either(uri: Path) -> None:
    with storage_lock(uri, "a refresh"):
        with pytest.raises(LockHeldError, match=f"process {os.getpid()}"), storage_lock(uri, "doctor", wait_s=0):
            pytest.fail("the lock was given twice")
        assert is_locked(uri)


def test_storages_have_locks_of_their_own(tmp_path: Path) -> None:
    with storage_lock(tmp_path / "one", "a refresh", wait_s=0), storage_lock(tmp_path / "two", "a refresh", wait_s=0):
        assert is_locked(tmp_path / "one")
        assert is_locked(tmp_path / "two")


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "{}", '{"purpose": "p", "pid": 1}', "null"])
def test_a_damaged_note_of_the_holder_breaks_no_message(uri: Path, text: str) -> None:
    with storage_lock(uri, "a refresh"):
        (uri / ".writer.json").write_text(text)
        with pytest.raises(LockHeldError, match="another process"), storage_lock(uri, "doctor", wait_s=0):
            pytest.fail("the lock was given twice")
    assert holder(uri.with_name("none")) == "another process"


def test_a_storage_that_cannot_be_written_is_an_error_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file cannot be written"), storage_lock(tmp_path / "file", "a refresh"):
        pytest.fail("a file is no storage")
    (tmp_path / "index" / ".writer.json").mkdir(parents=True)
    with pytest.raises(StorageError, match="Is a directory"), storage_lock(tmp_path / "index", "a refresh"):
        pytest.fail("the holder could not be noted")
    assert not is_locked(tmp_path / "index")


def test_who_may_not_write_the_lock_file_can_still_ask(uri: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with storage_lock(uri, "a refresh"):
        pass

    def denied(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("ctx_pipeline.index.lock.FileLock.acquire", denied)
    assert not is_locked(uri)


# Processes -------------------------------------------------------------------------------------------------------


def test_a_living_process_is_not_dead(uri: Path, start: Callable[[str], Holder]) -> None:
    assert not process_is_dead(this_process())
    identity = start("one").wait_until_held()
    assert identity != this_process()
    assert not process_is_dead(identity)


def test_a_killed_process_is_dead_also_before_its_parent_took_notice(uri: Path, start: Callable[[str], Holder]) -> None:
    other = start("one")
    identity = other.wait_until_held()
    os.kill(other.process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, other.process.pid, os.WEXITED | os.WNOWAIT)  # ended, and still a zombie
    assert process_is_dead(identity)
    other.process.wait()
    assert process_is_dead(identity)


def test_another_process_with_the_same_pid_is_not_taken_for_it() -> None:
    mine = this_process()
    assert process_is_dead({**mine, "started": str(float(mine["started"]) - 3_600)})
    assert process_is_dead({**mine, "started": str(float(mine["started"]) + 3_600)})


def test_a_clock_that_was_set_a_little_kills_nobody() -> None:
    mine = this_process()
    assert not process_is_dead({**mine, "started": str(float(mine["started"]) + 1)})


def test_nobody_can_tell_of_a_process_on_another_host() -> None:
    assert not process_is_dead({**this_process(), "host": "elsewhere", "started": "0"})
    assert not process_is_dead({"host": "elsewhere", "pid": "999999999", "started": "0"})


def test_an_identity_is_text_for_the_tags_of_a_run() -> None:
    assert set(this_process()) == {"host", "pid", "started"}
    assert all(isinstance(value, str) and value for value in this_process().values())
