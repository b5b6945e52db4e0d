"""What refreshes by itself: a sensor on the sources, and a schedule."""

import json
import time
from dataclasses import asdict, dataclass
from typing import Any

import dagster as dg

from ctx_pipeline.defs.refresh import JOB
from ctx_pipeline.defs.resources import UNFINISHED, PipelineResource, is_dead, is_tagged
from ctx_pipeline.errors import CtxError, counted
from ctx_pipeline.escaping import one_line
from ctx_pipeline.index.lock import holder, is_locked
from ctx_pipeline.settings import Settings

INTERVAL_S = 30
BACKOFF_FIRST_S, BACKOFF_MAX_S = 60, 3_600
UNTAGGED_GRACE_S = 300
"""A run that has not yet said which process works on it counts as alive for this long."""
DEFAULT_CRON = "0 3 * * *"


@dataclass(frozen=True)
class Cursor:
    """What the sensor asked for last. `requests` only grows, so that no run key is used twice."""

    digest: str = ""
    requests: int = 0
    tries: int = 0
    next_try: float = 0.0

    @classmethod
    def load(cls, raw: str | None) -> "Cursor":
        """The cursor of the last tick; a damaged one starts anew from the clock, which is ahead of any count."""
        try:
            return cls(**json.loads(raw)) if raw else cls()
        except (ValueError, TypeError):
            return cls(requests=int(time.time()))

    def requested(self, digest: str, now: float) -> "Cursor":
        """After a request for `digest`: the same work again waits twice as long each time."""
        tries = self.tries + 1 if digest == self.digest else 1
        delay = min(BACKOFF_FIRST_S * 2 ** (tries - 1), BACKOFF_MAX_S)
        return Cursor(digest, self.requests + 1, tries, now + delay)

    def waits(self, now: float) -> bool:
        """Whether the same work is not to be requested again yet; a pause beyond the longest is a wrong clock's."""
        return self.next_try - BACKOFF_MAX_S <= now < self.next_try

    def settled(self) -> "Cursor":
        """When nothing is owed: the next work is new work, be it the same edit as before."""
        return Cursor(requests=self.requests)


def source_changes_sensor() -> dg.SensorDefinition:
    """Requests a refresh when documents are owed work; nothing owed, no run."""

    @dg.sensor(
        name="source_changes",
        job_name=JOB,
        minimum_interval_seconds=INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests a refresh when documents were added, edited or removed, or settings changed.",
    )
    def source_changes(context: dg.SensorEvaluationContext, pipeline: PipelineResource) -> Any:
        try:
            opened = pipeline.open()
            uri = opened.settings.storage.uri
            if is_locked(uri):
                return dg.SkipReason(f"the index is being written by {holder(uri)}")
            busy = run_in_progress(context.instance, time.time())
            if busy:
                return dg.SkipReason(f"refresh {busy} is on its way")
            plan = opened.plan(take_up=False)
            opened.settle(plan)
        except CtxError as error:
            return dg.SkipReason(one_line(str(error)))
        cursor, now = Cursor.load(context.cursor), time.time()
        if not plan.owed:
            context.update_cursor(json.dumps(asdict(cursor.settled())))
            return dg.SkipReason(f"nothing is owed: {counted(plan.unchanged, 'document')} unchanged")
        digest = plan.digest()
        if digest == cursor.digest and cursor.waits(now):
            return dg.SkipReason(f"the same work was requested before; next try in {cursor.next_try - now:.0f} s")
        after = cursor.requested(digest, now)
        context.update_cursor(json.dumps(asdict(after)))
        return dg.RunRequest(
            run_key=f"{digest}-{after.requests}",
            tags={"ctx/owed_documents": str(len(plan.work) + len(plan.removed))},
        )

    return source_changes


def run_in_progress(instance: dg.DagsterInstance, now: float) -> str:
    """A refresh that is queued or running; runs of dead processes do not count. Empty for none."""
    statuses = [*UNFINISHED, dg.DagsterRunStatus.QUEUED]
    for record in instance.get_run_records(filters=dg.RunsFilter(job_name=JOB, statuses=statuses)):
        run = record.dagster_run
        queued = run.status == dg.DagsterRunStatus.QUEUED
        fresh = abs(now - record.create_timestamp.timestamp()) < UNTAGGED_GRACE_S
        if queued or (not is_dead(run) if is_tagged(run) else fresh):
            return run.run_id
    return ""


def refresh_schedule(settings: Settings) -> dg.ScheduleDefinition:
    """`scheduled_refresh` at the cron and time zone of the settings; without a cron it is stopped."""

    @dg.schedule(
        name="scheduled_refresh",
        job_name=JOB,
        cron_schedule=settings.schedule.cron or DEFAULT_CRON,
        execution_timezone=settings.schedule.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING if settings.schedule.cron else dg.DefaultScheduleStatus.STOPPED,
        description="Requests a refresh by the clock, when anything is owed.",
    )
    def scheduled_refresh(context: dg.ScheduleEvaluationContext, pipeline: PipelineResource) -> Any:
        try:
            plan = pipeline.open().plan()
        except CtxError as error:
            return dg.SkipReason(one_line(str(error)))
        if not plan.owed:
            return dg.SkipReason(f"nothing is owed: {counted(plan.unchanged, 'document')} unchanged")
        return dg.RunRequest(run_key=context.scheduled_execution_time.isoformat())

    return scheduled_refresh
