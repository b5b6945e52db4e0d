"""Commands that measure retrieval."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ctx_pipeline.cli_options import DONE, FOUND, json_option, open_pipeline, source_option

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("eval")
@click.argument("queries", type=_FILE)
@click.option("--chunks", type=_FILE, help="JSON lines with chunk boundaries, in place of the chunker's.")
@source_option
@click.option("--results", type=_FILE, help="Where each query's results go; else into the storage folder.")
@click.option("--plot", type=_FILE, help="Draw the ladder into a PNG file.")
@json_option
def evaluate(
    queries: Path, chunks: Path | None, source: Path | None, results: Path | None, plot: Path | None, as_json: bool
) -> int:
    """Measure every step of contextual retrieval on QUERIES, a file of JSON lines {"qid","query","doc","start","end"}.

    Without --source and --chunks it measures what the index holds. Exits with 1 below `evaluation.min_recall`.
    """
    from ctx_pipeline.evaluation.evaluation import evaluate_corpus
    from ctx_pipeline.evaluation.report import markdown, plot_png, to_json, write_file

    evaluation = evaluate_corpus(
        open_pipeline(source),
        queries,
        files=source is not None,
        chunks=chunks,
        results=results,
        progress=lambda line: click.echo(line, err=True),
    )
    if plot:
        write_file(plot, plot_png(evaluation.ladder))
    if as_json:
        click.echo(json.dumps({**to_json(evaluation.ladder), "results": str(evaluation.results)}, ensure_ascii=False))
    else:
        click.echo(markdown(evaluation.ladder))
        click.echo(f"\neach query: {evaluation.results}")
    if evaluation.shortfall:
        click.echo(evaluation.shortfall, err=True)
    return FOUND if evaluation.shortfall else DONE


@click.command("diagnose")
@click.argument("queries", type=_FILE)
@click.option("--chunks", type=_FILE, help="JSON lines with chunk boundaries, in place of the chunker's.")
@source_option
@click.option("--all", "all_queries", is_flag=True, help="Show every failed query, not only the first 20.")
@json_option
def diagnose(queries: Path, chunks: Path | None, source: Path | None, all_queries: bool, as_json: bool) -> int:
    """Tell why queries fail, and what to try. QUERIES is a file as for `eval`.

    Without --source and --chunks it asks the index. Exits with 1 when the first 20 chunks leave a passage out.
    """
    from ctx_pipeline.evaluation.advice import Advisor
    from ctx_pipeline.evaluation.diagnose import diagnose_queries
    from ctx_pipeline.evaluation.diagnosis_report import text, to_json

    pipeline = open_pipeline(source)
    diagnosis = diagnose_queries(
        pipeline,
        queries,
        files=source is not None,
        chunks=chunks,
        progress=lambda line: click.echo(line, err=True),
    )
    advisor = Advisor(pipeline, diagnosis)
    if as_json:
        click.echo(json.dumps(to_json(diagnosis, advisor), ensure_ascii=False))
    else:
        click.echo(text(diagnosis, advisor, all_queries=all_queries))
        for warning in diagnosis.warnings:
            click.echo(f"warning: {warning}", err=True)
    return FOUND if diagnosis.failed else DONE
