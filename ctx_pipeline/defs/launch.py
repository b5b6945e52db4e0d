"""One refresh as a Dagster run in this process, for the command line."""

from __future__ import annotations

import os
import uuid
import warnings
from dataclasses import asdict
from pathlib import Path

import dagster as dg
from filelock import FileLock

from ctx_pipeline.definitions import build_definitions
from ctx_pipeline.defs.events import PartitionKeys
from ctx_pipeline.defs.refresh import JOB, NAME, Report
from ctx_pipeline.defs.resources import fail_dead_runs, process_tags
from ctx_pipeline.errors import SettingsError
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.private_files import FILE_MODE, make_folder, write
from ctx_pipeline.refresh import Pipeline
from ctx_pipeline.settings_file import settings_file
from ctx_pipeline.summary import RefreshOptions

INSTANCE_SETTINGS = """\
telemetry:
  enabled: false
nux:
  enabled: false
concurrency:
  runs:
    max_concurrent_runs: 1
compute_logs:
  module: dagster._core.storage.noop_compute_log_manager
  class: NoOpComputeLogManager
"""


def dagster_home() -> Path:
    """`DAGSTER_HOME`, else the folder `dagster_home` beside the settings file, made if need be.

    Raises SettingsError when it cannot be used.
    """
    home = Path(os.environ.get("DAGSTER_HOME") or settings_file().parent / "dagster_home").absolute()
    try:
        make_folder(home)
        if not (home / "dagster.yaml").exists():
            write(home / "dagster.yaml", INSTANCE_SETTINGS.encode())
    except OSError as error:
        raise SettingsError(
            f"DAGSTER_HOME {home} cannot be used ({error.strerror or error}); name another folder"
        ) from None
    os.environ["DAGSTER_HOME"] = str(home)
    return home


def open_instance() -> dg.DagsterInstance:
    """The instance of `DAGSTER_HOME`. One process at a time opens it: two that make its databases spoil them."""
    home = dagster_home()
    with FileLock(home / ".opening.lock", mode=FILE_MODE):
        instance = dg.DagsterInstance.get()
        instance.get_dynamic_partitions("documents")  # makes the event log's database, if need be
        return instance


def run_refresh(report: Report, options: RefreshOptions, *, source: str = "", debug: bool = False) -> bool:
    """Run the refresh job in the instance of `DAGSTER_HOME`; whether the run succeeded.

    The summary, or the error with a message, is in `report`. Other errors are raised when `debug` is set, and are
    in the run's log in any case.
    """
    run_id = str(uuid.uuid4())
    if not debug:
        warnings.simplefilter("ignore")
    job = build_definitions(source=source, report=report).resolve_job_def(JOB)
    with open_instance() as instance:
        result = job.execute_in_process(
            instance=instance,
            raise_on_error=debug,
            run_id=run_id,
            tags=process_tags(run_id),
            run_config={
                "ops": {NAME: {"config": asdict(options)}},
                "loggers": {"console": {"config": {"log_level": "DEBUG" if debug else "CRITICAL"}}},
            },
        )
        if not result.success and report.summary is None and report.error is None:
            report.unforeseen = _first_failure(result)
            if "DagsterExecutionInterruptedError" in report.unforeseen:
                raise KeyboardInterrupt  # Dagster takes the signal for itself while a step runs
        return bool(result.success)


def _first_failure(result: dg.ExecuteInProcessResult) -> str:
    for event in result.all_events:
        if event.is_step_failure:
            error = event.step_failure_data.error
            cause = error.cause if error and error.cause else error
            return cause.message.strip().splitlines()[0] if cause else "the step failed"
    return "the run failed before its step began"


def partition_doc_ids(name: str) -> set[str]:
    """The documents that have a partition key in the instance of `DAGSTER_HOME`."""
    with open_instance() as instance:
        return PartitionKeys(instance, name).doc_ids()


def reconcile_partitions(name: str, pipeline: Pipeline) -> list[str]:
    """Make the partition keys those of the ledger and fail the runs of dead processes; what was done, in words.

    The caller holds the storage's lock.
    """
    with open_instance() as instance:
        failed = fail_dead_runs(instance)
        keys = PartitionKeys(instance, name)
        before = keys.doc_ids()
        wanted = set(Ledger.read(pipeline.store).rows)
        keys.reconcile(wanted)
        changed = len(before ^ wanted)
    return [
        *([f"{changed} partition keys added or removed"] if changed else []),
        *(f"run {run_id} marked as failed: its process is gone" for run_id in failed),
    ]
