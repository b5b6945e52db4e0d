"""What the commands share: exit codes, options, and the pipeline of the settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from ctx_pipeline.settings import Rerank

if TYPE_CHECKING:
    from ctx_pipeline.refresh import Pipeline

DONE, FOUND, WRONG_USE, INTERRUPTED = 0, 1, 2, 130

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on standard output.")
source_option = click.option(
    "--source",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder of documents, in place of the configured sources.",
)

rerank_option = click.option(
    "--rerank",
    type=click.Choice(get_args(Rerank)),
    help="What orders the fused candidates anew, in place of search.rerank.",
)


def open_pipeline(source: Path | None = None) -> Pipeline:
    """The pipeline of ctx.toml and the environment, or of `source` in place of the configured sources."""
    from ctx_pipeline.refresh import Pipeline
    from ctx_pipeline.settings_file import load_settings

    settings = load_settings()
    return Pipeline(settings.with_single_source(source) if source else settings)
