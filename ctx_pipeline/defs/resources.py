"""What the assets need from outside: the pipeline of the current settings, and the identity of this process."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import dagster as dg

from ctx_pipeline.errors import CtxError, SettingsError
from ctx_pipeline.escaping import one_line
from ctx_pipeline.index.lock import process_is_dead, this_process
from ctx_pipeline.refresh import Pipeline
from ctx_pipeline.settings import Settings
from ctx_pipeline.settings_file import load_settings

UNFINISHED = [
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
T = TypeVar("T")
_TAG = "ctx/{}"


class PipelineResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Opens the pipeline of `ctx.toml` and the environment, read anew for each run."""

    source: str = ""
    """A folder that replaces the configured sources, as `--source PATH` does."""

    def settings(self) -> Settings:
        """The settings of this moment. Raises SettingsError."""
        settings = load_settings()
        return settings.with_single_source(Path(self.source)) if self.source else settings

    def open(self) -> Pipeline:
        """The pipeline of these settings; nothing is loaded yet. Raises SettingsError."""
        return Pipeline(self.settings())


def settings_or_defaults() -> Settings:
    """The settings, or the defaults: definitions load even when the settings file is bad."""
    try:
        return load_settings()
    except SettingsError:
        return Settings()


def process_tags(run_id: str) -> dict[str, str]:
    """Run tags that tell which process works on a run. The run's id is among them: a run that is executed again
    starts with the tags of the one before."""
    return {_TAG.format(name): value for name, value in {**this_process(), "run": run_id}.items()}


def fail_dead_runs(instance: dg.DagsterInstance) -> list[str]:
    """Mark runs as failed whose process has ended; called by whoever got the lock.

    A killed process leaves its run started for ever. A live run that waits for the lock is left alone.
    """
    failed = []
    for run in instance.get_runs(filters=dg.RunsFilter(statuses=UNFINISHED)):
        if is_dead(run):
            instance.report_run_failed(
                run, "The process of this run ended without a word; what it began is owed and taken up."
            )
            failed.append(run.run_id)
    return failed


def is_dead(run: dg.DagsterRun) -> bool:
    """Whether the process that tagged the run is known to have ended."""
    identity = {name: run.tags.get(_TAG.format(name), "") for name in this_process()}
    return is_tagged(run) and process_is_dead(identity)


def is_tagged(run: dg.DagsterRun) -> bool:
    """Whether a process has said that it works on the run."""
    return run.tags.get(_TAG.format("run")) == run.run_id


def run_or_fail(work: Callable[[], T]) -> T:
    """Call `work`; an error with a message for people becomes a failed step that shows the message alone."""
    try:
        return work()
    except CtxError as error:
        raise dg.Failure(description=one_line(str(error)), allow_retries=False) from error
