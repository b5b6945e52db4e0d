"""The Dagster entry point. Reads the settings file and the environment; no table, no network."""

from __future__ import annotations

import dagster as dg

from ctx_pipeline.defs.assets import document_assets
from ctx_pipeline.defs.automation import refresh_schedule, source_changes_sensor
from ctx_pipeline.defs.checks import check_definitions
from ctx_pipeline.defs.evaluation import evaluation_asset, evaluation_job
from ctx_pipeline.defs.refresh import Report, refresh_asset, refresh_job
from ctx_pipeline.defs.resources import PipelineResource, settings_or_defaults


def build_definitions(*, source: str = "", report: Report | None = None) -> dg.Definitions:
    """All definitions; `source` replaces the configured sources, `report` receives what a refresh here did.

    With a bad settings file they load by the defaults: each run, and each tick of the sensor, then says what is wrong.
    """
    settings = settings_or_defaults()
    return dg.Definitions(
        assets=[document_assets(settings), refresh_asset(report), evaluation_asset()],
        asset_checks=check_definitions(),
        jobs=[refresh_job(), evaluation_job()],
        sensors=[source_changes_sensor()],
        schedules=[refresh_schedule(settings)],
        resources={"pipeline": PipelineResource(source=source)},
        executor=dg.in_process_executor,
    )


defs = build_definitions()
