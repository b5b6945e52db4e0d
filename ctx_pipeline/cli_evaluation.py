"""Commands that measure retrieval."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from ctx_pipeline.cli_options import DONE, FOUND, json_option, open_pipeline, rerank_option, source_option
from ctx_pipeline.settings import Rerank, Strategy
from ctx_pipeline.terminal import say, say_json, say_text

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("eval")
@click.argument("queries", type=_FILE)
@click.option("--chunks", type=_FILE, help="JSON lines with chunk boundaries, in place of the chunker's.")
@source_option
@rerank_option
@click.option("--results", type=_FILE, help="Where each query's results go; else into the storage folder.")
@click.option("--plot", type=_FILE, help="Draw the ladder into a PNG file.")
@click.option("--compare-chunking", is_flag=True, help="Compare chunking strategies, sizes and overlaps instead.")
@click.option("--strategy", "strategies", multiple=True, type=click.Choice(get_args(Strategy)), help="Of the sweep.")
@click.option("--size", "sizes", multiple=True, type=click.IntRange(32, 8192), help="Tokens of a chunk in the sweep.")
@click.option("--overlap", "overlaps", multiple=True, type=click.IntRange(0, 49), help="Percent, in the sweep.")
@json_option
def evaluate(
    queries: Path,
    chunks: Path | None,
    source: Path | None,
    rerank: Rerank | None,
    results: Path | None,
    plot: Path | None,
    compare_chunking: bool,
    strategies: tuple[Strategy, ...],
    sizes: tuple[int, ...],
    overlaps: tuple[int, ...],
    as_json: bool,
) -> int:
    """Measure every step of contextual retrieval on QUERIES, a file of JSON lines {"qid","query","doc","start","end"}.

    Without --source and --chunks it measures what the index holds. Exits with 1 below `evaluation.min_recall`.

    --compare-chunking cuts and indexes the documents by every strategy at 256, 512 and 1,024 tokens with an overlap of
    0, 10 and 20 %, or by those that --strategy, --size and --overlap name (each may be given several times).
    """
    if compare_chunking:
        if chunks or results or plot or rerank:
            raise click.UsageError("--compare-chunking goes without --chunks, --rerank, --results and --plot")
        return _compare_chunking(queries, source, strategies, sizes, overlaps, as_json)
    for written in (results, plot):
        if written and any(read and written.absolute() == read.absolute() for read in (queries, chunks)):
            raise click.UsageError(f"{written} is read, so it is not written to; name another file")
    if strategies or sizes or overlaps:
        raise click.UsageError("--strategy, --size and --overlap belong to --compare-chunking")
    from ctx_pipeline.evaluation.evaluation import evaluate_corpus
    from ctx_pipeline.evaluation.report import markdown, plot_png, to_json, write_file

    evaluation = evaluate_corpus(
        open_pipeline(source),
        queries,
        files=source is not None,
        chunks=chunks,
        results=results,
        rerank=rerank,
        progress=_say,
    )
    if plot:
        write_file(plot, plot_png(evaluation.ladder))
    if as_json:
        say_json({**to_json(evaluation.ladder), "results": str(evaluation.results)})
    else:
        say_text(markdown(evaluation.ladder))
        say("", f"each query: {evaluation.results}")
    if evaluation.shortfall:
        say(evaluation.shortfall, err=True)
    return FOUND if evaluation.shortfall else DONE


def _compare_chunking(
    queries: Path,
    source: Path | None,
    strategies: tuple[Strategy, ...],
    sizes: tuple[int, ...],
    overlaps: tuple[int, ...],
    as_json: bool,
) -> int:
    from ctx_pipeline.evaluation.chunking_comparison import OVERLAP_PERCENTS, SIZES, compare_chunking
    from ctx_pipeline.evaluation.comparison_report import comparison_json, comparison_markdown
    from ctx_pipeline.evaluation.evaluation import open_corpus
    from ctx_pipeline.evaluation.queries import read_queries

    asked = read_queries(queries)
    pipeline = open_pipeline(source)
    corpus, _ = open_corpus(pipeline, files=source is not None, chunks=None)
    comparison = compare_chunking(
        pipeline,
        corpus,
        asked,
        strategies=strategies or get_args(Strategy),
        sizes=sizes or SIZES,
        overlaps=overlaps or OVERLAP_PERCENTS,
        progress=_say,
    )
    if as_json:
        say_json(comparison_json(comparison))
    else:
        say_text(comparison_markdown(comparison))
    say(*comparison.warnings, err=True)
    return DONE


def _say(line: str) -> None:
    say(line, err=True)


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
        progress=_say,
    )
    advisor = Advisor(pipeline, diagnosis)
    if as_json:
        say_json(to_json(diagnosis, advisor))
    else:
        say_text(text(diagnosis, advisor, all_queries=all_queries))
        say(*(f"warning: {warning}" for warning in diagnosis.warnings), err=True)
    return FOUND if diagnosis.failed else DONE
