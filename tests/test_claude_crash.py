"""Killed or interrupted with calls in flight: what was paid for stays, and is not asked for again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ctx_pipeline.contexts.memo import FLUSH_S
from ctx_pipeline.index.schemas import MEMO
from tests.emulators.bill import Bill
from tests.emulators.messages import KEY, MessagesEmulator
from tests.emulators.process import EmulatorProcess, emulator_process
from tests.project import Project
from tests.test_claude_refresh import PLANS, document
from tests.test_crash import ROOT, kill_refresh

DOCUMENTS = 12
LATENCY_S = 0.15
CONCURRENCY = 4


def fill(project: Project) -> Project:
    """Documents that take the emulator some seconds."""
    settings = {"method": "claude", "concurrency": CONCURRENCY}
    project.write_settings(contexts=settings, chunking={"max_tokens": 96})
    for number in range(DOCUMENTS):
        project.write(f"d{number:02}.md", document(f"Documento {number}", *PLANS))
    return project


@pytest.fixture
def api(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatorProcess]:
    """An emulator that outlives its clients, of which this process is one."""
    fill(project)
    with emulator_process("--first-token-s", str(LATENCY_S)) as emulator:
        use(emulator.url, monkeypatch)
        yield emulator


def use(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", url)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of a build that nothing disturbed: the emulator's answers depend on view and chunk alone."""
    with pytest.MonkeyPatch.context() as patch, MessagesEmulator() as emulator:
        use(emulator.url, patch)
        project = fill(Project(tmp_path_factory.mktemp("undisturbed") / "project"))
        assert not project.refresh().stopped
        return project.search_rows()


def quiet_bill(api: EmulatorProcess) -> Bill:
    """The bill when nothing is in flight any more."""
    while (bill := api.bill()).in_flight:
        time.sleep(0.05)
    return bill


def memo_rows(project: Project) -> int:
    return project.pipeline().store.count(MEMO)


def finish(project: Project, undisturbed: list[dict[str, Any]]) -> None:
    """Another refresh completes what was begun."""
    assert not project.refresh().stopped
    assert project.search_rows() == undisturbed
    assert {row["context_status"] for row in project.search_rows()} == {"written"}
    assert not project.pipeline().plan().owed


@pytest.mark.parametrize("point", ["contexts", "search", "events"])
def test_killed_at_a_commit_point_nothing_is_asked_twice(
    point: str, project: Project, api: EmulatorProcess, undisturbed: list[dict[str, Any]]
) -> None:
    kill_refresh(project, point)
    paid = len(api.bill().answered)
    assert paid == memo_rows(project) > 0
    finish(project, undisturbed)
    assert len(api.bill().answered) == paid


def test_killed_at_random_moments_only_calls_in_flight_or_not_yet_stored_are_asked_again(
    project: Project, api: EmulatorProcess, undisturbed: list[dict[str, Any]]
) -> None:
    chance, lost = random.Random(4), 0
    for _ in range(3):
        kill_refresh(project, f"after-ms:{chance.uniform(1_000, 4_000):.0f}")
        killed_at = time.monotonic()  # the emulator's clock is the machine's
        bill = quiet_bill(api)
        own = len(bill.answered) - lost - memo_rows(project)
        recent = [e for e in bill.answered if e.started_at > killed_at - FLUSH_S - LATENCY_S - 1]
        assert own <= len(recent)
        lost += own
    finish(project, undisturbed)
    assert len(api.bill().answered) == memo_rows(project) + lost


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_by_a_signal_every_answer_is_kept(
    number: int, project: Project, api: EmulatorProcess, undisturbed: list[dict[str, Any]]
) -> None:
    refresh = subprocess.Popen(
        [sys.executable, "-m", "ctx_pipeline.cli", "refresh"],
        cwd=ROOT,
        env={**os.environ, **project.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while len(api.bill().answered) < 2 * CONCURRENCY:
            assert refresh.poll() is None, refresh.communicate()
            time.sleep(0.02)
        refresh.send_signal(number)
        _, errors = refresh.communicate()
    finally:
        refresh.kill()
        refresh.wait()
    assert refresh.returncode == 130, errors
    assert "interrupted; what was finished stays" in errors
    bill = quiet_bill(api)
    lost = len(bill.answered) - memo_rows(project)
    assert lost <= CONCURRENCY, "the calls in flight"
    assert len(bill.entries) < DOCUMENTS * len(PLANS), "no further calls were sent"
    finish(project, undisturbed)
    assert len(api.bill().answered) == memo_rows(project) + lost
