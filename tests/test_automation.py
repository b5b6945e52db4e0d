"""The sensor and the schedule: nothing owed, no run; each new piece of work asked for once; failures back off."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from ctx_pipeline.definitions import build_definitions
from ctx_pipeline.defs.automation import BACKOFF_MAX_S, Cursor, run_in_progress
from ctx_pipeline.defs.refresh import JOB
from ctx_pipeline.defs.resources import PipelineResource, fail_dead_runs, process_tags
from ctx_pipeline.index.lock import storage_lock
from tests.project import Project
from tests.scripted_contexts import ScriptedContextualizer, scripted

__all__ = ["scripted"]

RESOURCES = {"pipeline": PipelineResource()}
TEXT = "# Guía\n\nTexto.\n"


class Ticks:
    """A sensor evaluated tick by tick with its cursor kept."""

    def __init__(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in project.environment.items():
            monkeypatch.setenv(name, value)
        self.definitions = build_definitions()
        self.project, self.cursor = project, None

    def __call__(self) -> dg.RunRequest | str:
        repository = self.definitions.get_repository_def()
        sensor = repository.get_sensor_def("source_changes")
        with self.project.instance() as instance:
            context = dg.build_sensor_context(
                instance=instance, cursor=self.cursor, repository_def=repository, resources=RESOURCES
            )
            data = sensor.evaluate_tick(context)
        self.cursor = data.cursor
        return data.run_requests[0] if data.run_requests else str(data.skip_message)


@pytest.fixture
def tick(project: Project, monkeypatch: pytest.MonkeyPatch) -> Ticks:
    return Ticks(project, monkeypatch)


def test_an_edit_is_requested_once_and_not_again_when_done(tick: Ticks, project: Project) -> None:
    project.write("a.md", TEXT)
    first = tick()
    assert isinstance(first, dg.RunRequest)
    assert "requested before" in tick(), "the run may not have begun yet"
    project.refresh()
    assert tick() == "nothing is owed: 1 document unchanged"


def test_an_edit_undone_and_redone_is_requested_again_under_another_key(tick: Ticks, project: Project) -> None:
    project.write("a.md", TEXT)
    project.refresh()
    keys = []
    for text in (TEXT + "B", TEXT, TEXT + "B"):
        project.write("a.md", text)
        request = tick()
        assert isinstance(request, dg.RunRequest)
        keys.append(request.run_key)
        project.refresh()
        assert "nothing is owed" in tick()
    assert len(set(keys)) == 3


def test_the_same_work_is_requested_again_later_and_later(
    tick: Ticks, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", TEXT)
    now = [1_800_000_000.0]
    monkeypatch.setattr("ctx_pipeline.defs.automation.time.time", lambda: now[0])
    for minutes in (1, 2, 4, 8, 16, 32, 60, 60):
        assert isinstance(tick(), dg.RunRequest)
        now[0] += minutes * 60 - 1
        assert "requested before; next try in 1 s" in tick()
        now[0] += 1


def test_a_standing_failure_and_held_back_deletions_fire_nothing(tick: Ticks, project: Project) -> None:
    for n in range(30):
        project.write(f"d{n}.md", TEXT)
    project.write("bad.md", b"\x80")
    project.refresh()
    for n in range(30):
        (project.docs / f"d{n}.md").unlink()
    assert "nothing is owed" in tick()


def test_pending_contexts_fire_nothing_and_the_schedule_takes_them_up(
    tick: Ticks, project: Project, scripted: ScriptedContextualizer
) -> None:
    project.write("a.md", TEXT)
    scripted.outcomes["Texto"], scripted.taken_up = ("pending", "budget"), {"budget"}
    project.refresh()
    assert project.pipeline().plan().owed
    assert "nothing is owed" in tick()
    project.write("b.md", TEXT)
    with_pending = tick()
    assert isinstance(with_pending, dg.RunRequest)
    assert with_pending.tags["ctx/owed_documents"] == "1"
    schedule = tick.definitions.get_repository_def().get_schedule_def("scheduled_refresh")
    project.refresh()
    assert (
        len(
            schedule.evaluate_tick(
                dg.build_schedule_context(
                    scheduled_execution_time=datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC), resources=RESOURCES
                )
            ).run_requests
        )
        == 1
    )


def test_a_bad_settings_file_shows_on_the_sensor_and_definitions_still_load(tick: Ticks, project: Project) -> None:
    (project.root / "ctx.toml").write_text("[chunking]\nmax_tokens = 'many'\n")
    assert "chunking.max_tokens" in tick()
    build_definitions()


def test_the_sensor_waits_for_whoever_writes(tick: Ticks, project: Project) -> None:
    project.write("a.md", TEXT)
    with storage_lock(project.settings.storage.uri, "a long refresh"):
        assert "being written by a long refresh" in tick()
    assert isinstance(tick(), dg.RunRequest)


def start_run(instance: dg.DagsterInstance, tags: Callable[[str], dict[str, str]]) -> str:
    job = build_definitions().resolve_job_def(JOB)
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    instance.add_run_tags(run.run_id, tags(run.run_id))
    return run.run_id


def tags_of_a_dead_process(run_id: str) -> dict[str, str]:
    code = "import json, sys; from ctx_pipeline.index.lock import this_process; print(json.dumps(this_process()))"
    ended = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    return {**{f"ctx/{name}": value for name, value in ended.items()}, "ctx/run": run_id}


def test_a_live_run_is_waited_for_and_a_dead_one_is_not(tick: Ticks, project: Project) -> None:
    project.write("a.md", TEXT)
    with project.instance() as instance:
        alive = start_run(instance, process_tags)
        assert alive in tick()
        instance.report_run_failed(instance.get_run_by_id(alive))
        start_run(instance, tags_of_a_dead_process)
        assert run_in_progress(instance, 0.0) == ""
        assert isinstance(tick(), dg.RunRequest)


def test_the_next_refresh_fails_runs_of_dead_processes_only(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    with project.instance() as instance:
        alive, dead = start_run(instance, process_tags), start_run(instance, tags_of_a_dead_process)
        assert fail_dead_runs(instance) == [dead]
        assert instance.get_run_by_id(dead).status == dg.DagsterRunStatus.FAILURE
        assert instance.get_run_by_id(alive).status == dg.DagsterRunStatus.STARTED


def test_a_run_executed_again_is_not_judged_by_the_tags_it_inherited(project: Project) -> None:
    with project.instance() as instance:
        start_run(instance, lambda run_id: tags_of_a_dead_process("the run before"))
        assert fail_dead_runs(instance) == []


def test_an_untagged_run_of_a_clock_that_was_ahead_is_not_waited_for(project: Project) -> None:
    with project.instance() as instance:
        run_id = start_run(instance, lambda run_id: {})
        now = time.time()
        assert run_in_progress(instance, now) == run_id
        assert run_in_progress(instance, now - 86_400) == ""


def test_the_same_work_waits_no_longer_than_the_longest_pause_whatever_the_clock_was() -> None:
    requested = Cursor(digest="d", tries=20).requested("d", 1_000_000.0)
    assert requested.waits(1_000_000.0)
    assert requested.waits(1_000_000.0 + BACKOFF_MAX_S - 1)
    assert not requested.waits(1_000_000.0 + BACKOFF_MAX_S)
    assert not requested.waits(1_000_000.0 - 86_400), "it was asked for by a clock a day ahead"


def test_a_damaged_cursor_starts_anew_with_unused_keys() -> None:
    assert Cursor.load("{broken").requests > 1_000_000
    assert Cursor.load(None) == Cursor()


def test_the_schedule_takes_cron_and_time_zone_and_skips_when_nothing_is_owed(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write_settings(schedule={"cron": "30 6 * * 1-5", "timezone": "Europe/Madrid"})
    for name, value in project.environment.items():
        monkeypatch.setenv(name, value)
    repository = build_definitions().get_repository_def()
    schedule = repository.get_schedule_def("scheduled_refresh")
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("30 6 * * 1-5", "Europe/Madrid")
    assert schedule.default_status == dg.DefaultScheduleStatus.RUNNING
    project.write("a.md", TEXT)

    def evaluate() -> dg.ScheduleExecutionData:
        moment = datetime.datetime(2026, 11, 30, 6, 30, tzinfo=datetime.UTC)
        context = dg.build_schedule_context(
            repository_def=repository, scheduled_execution_time=moment, resources=RESOURCES
        )
        return schedule.evaluate_tick(context)

    assert len(evaluate().run_requests) == 1
    project.refresh()
    assert "nothing is owed" in evaluate().skip_message


def test_without_a_cron_the_schedule_is_there_but_stopped() -> None:
    schedule = build_definitions().get_repository_def().get_schedule_def("scheduled_refresh")
    assert schedule.default_status == dg.DefaultScheduleStatus.STOPPED


def test_definitions_load_in_a_bare_environment_and_touch_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    code = (
        "import sys; import ctx_pipeline.definitions as d; d.defs.get_repository_def(); "
        "bad = [m for m in ('lancedb', 'onnxruntime', 'tiktoken', 'tokenizers') if m in sys.modules]; "
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=home,
        env={"PATH": "/usr/bin", "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(home.iterdir()) == []


def test_the_asset_graph() -> None:
    graph = build_definitions().resolve_asset_graph()
    parents = {
        key.to_user_string(): sorted(parent.to_user_string() for parent in graph.get(key).parent_keys)
        for key in graph.get_all_asset_keys()
    }
    assert parents == {
        "raw_documents": [],
        "chunks": ["raw_documents"],
        "contexts": ["chunks"],
        "search_index": ["contexts"],
        "corpus_refresh": [],
        "retrieval_evaluation": [],
    }
