"""The command line. Dagster is imported only by a refresh with work to do and by `doctor`."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ctx_pipeline.cli_evaluation import diagnose as diagnose_command
from ctx_pipeline.cli_evaluation import evaluate
from ctx_pipeline.cli_options import DONE, FOUND, INTERRUPTED, WRONG_USE, json_option, open_pipeline, source_option
from ctx_pipeline.cli_plan import plan
from ctx_pipeline.cli_project import dev, documents, init
from ctx_pipeline.cli_retrieval import ask, search
from ctx_pipeline.errors import CtxError, QueryError, SettingsError, counted
from ctx_pipeline.terminal import say, say_json, say_text

if TYPE_CHECKING:
    from ctx_pipeline.index.plan import Plan
    from ctx_pipeline.refresh import Pipeline
    from ctx_pipeline.summary import Summary

LISTED, PLANNED = 10, 50
"""Documents named one by one; the rest are counted."""
PRIVATE = 0o077


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.version_option(package_name="ctx-pipeline")
@click.option("--debug", is_flag=True, help="Show tracebacks and Dagster's log.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Contextual retrieval, kept fresh.

    Settings come from ctx.toml in the working directory (or CTX_CONFIG) and from CTX_SECTION__KEY variables.
    """
    context.obj = debug
    if context.invoked_subcommand is None:
        say_text(context.get_help())


for command in (search, ask, evaluate, diagnose_command, plan, init, dev, documents):
    cli.add_command(command)


def main() -> None:
    """Entry point: one line for every foreseen error, exit codes 0, 1 and 2.

    What the commands write holds text of documents, so it is for the user alone: Dagster's and LanceDB's files too.
    """
    os.umask(PRIVATE)
    debug = sys.argv[1:2] == ["--debug"]
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Exit as request:
        code = request.exit_code
    except click.ClickException as error:
        say(f"error: {error.format_message()} (--help shows the usage)", err=True)
        code = WRONG_USE
    except (click.Abort, KeyboardInterrupt):
        say("interrupted; what was finished stays, and the next refresh does the rest", err=True)
        code = INTERRUPTED
    except CtxError as error:
        if debug:
            say_text(traceback.format_exc(), err=True)
        say(f"error: {error}", err=True)
        code = WRONG_USE if isinstance(error, SettingsError | QueryError) else FOUND
    except Exception as error:
        if debug:
            say_text(traceback.format_exc(), err=True)
        first = str(error).strip().splitlines() or [""]
        say(f"error: {type(error).__name__}: {first[0]} (`ctx-pipeline --debug …` shows where)", err=True)
        code = FOUND
    sys.exit(code or DONE)


@cli.command()
@source_option
@click.option("--dry-run", is_flag=True, help="Tell what would be done, and do nothing.")
@click.option("--verify", is_flag=True, help="Hash every file, whatever its size and mtime.")
@click.option("--retry", is_flag=True, help="Try failed documents and fallback contexts again.")
@click.option("--renew", is_flag=True, help="Ask again for contexts that an earlier version of this program asked for.")
@click.option("--allow-mass-delete", is_flag=True, help="Carry out deletions that safety limits hold back.")
@json_option
@click.pass_obj
def refresh(
    debug: bool,
    source: Path | None,
    dry_run: bool,
    verify: bool,
    retry: bool,
    renew: bool,
    allow_mass_delete: bool,
    as_json: bool,
) -> int:
    """Bring the index up to date with the sources: only edited documents are worked on."""
    from ctx_pipeline.index.awaited import context_warnings
    from ctx_pipeline.summary import RefreshOptions, Summary

    started = time.monotonic()
    options = RefreshOptions(verify, retry, renew, allow_mass_delete)
    if source is not None and not dry_run:
        _remember(source)
    pipeline = open_pipeline(source)
    plan = pipeline.plan(options)
    if dry_run:
        _print_plan(plan, pipeline, as_json, renew=renew)
        return DONE
    if plan.owed:
        summary = _refresh_in_dagster(pipeline, source, options, debug=debug, quiet=as_json)
    else:
        pipeline.settle(plan)
        summary = Summary(
            unchanged=plan.unchanged,
            skipped=len(plan.skipped),
            not_indexed=plan.not_indexed,
            standing=plan.failed,
            warnings=plan.warnings + context_warnings(plan.contexts),
        )
    summary.seconds = time.monotonic() - started
    if as_json:
        say_json(summary.to_json())
    else:
        _print_summary(summary, pipeline)
    say(*summary.warnings, *_failure_lines(summary), err=True)
    return FOUND if summary.failures or summary.unfinished else DONE


def _remember(source: Path) -> None:
    """Where there are no settings yet, keep the source in a file, so that `search` and the next refresh know it."""
    from ctx_pipeline.settings_file import settings_file, write_settings

    path = settings_file()
    if not path.exists() and not os.environ.get("CTX_CONFIG"):
        write_settings(path, source)
        say(f"{path} written, which names this source: `ctx-pipeline refresh` is enough from now on", err=True)


def _refresh_in_dagster(pipeline: Pipeline, source: Path | None, options: Any, *, debug: bool, quiet: bool) -> Summary:
    from ctx_pipeline.index.lock import holder, is_locked

    if is_locked(pipeline.store.uri):
        say(f"waiting: the index is being written by {holder(pipeline.store.uri)}", err=True)
    from ctx_pipeline.defs.launch import run_refresh
    from ctx_pipeline.defs.refresh import Report
    from ctx_pipeline.progress import TerminalProgress

    progress = TerminalProgress(quiet=quiet)
    report = Report(
        progress=progress.documents,
        contexts_progress=progress.contexts,
        planned=lambda plan: say(f"plan       {plan.line()}", err=quiet),
    )
    run_refresh(report, options, source=str(source.absolute()) if source else "", debug=debug)
    if report.error is not None:
        raise report.error
    if report.summary is None:
        raise CtxError(f"the refresh failed: {report.unforeseen}; its run in Dagster has the traceback")
    return report.summary


def _print_summary(summary: Summary, pipeline: Pipeline) -> None:
    say(
        f"documents  {summary.added} added, {summary.changed} changed, {summary.removed} removed, "
        f"{summary.unchanged} unchanged, {summary.failed} failed, {summary.skipped} skipped"
    )
    say(*_left_out_lines(summary))
    if pipeline.method_note:
        say(f"method     {pipeline.method_note}")
    if summary.run_id is None:
        say(f"nothing to do  ({summary.seconds:.1f} s)")
        return
    contexts = ", ".join(f"{count} {status}" for status, count in summary.contexts.items())
    say(f"chunks     {summary.chunks_indexed} indexed, {summary.tokens:,} tokens, {_size_words(pipeline)}")
    say(f"contexts   {contexts} ({pipeline.contextualizer.method})")
    if summary.earlier_wording:
        say(
            f"earlier    {counted(summary.earlier_wording, 'context')} of an earlier wording kept; "
            "`ctx-pipeline plan --renew` prices asking for them again, `refresh --renew` does it"
        )
    if summary.calls:
        usage = summary.usage
        say(
            f"tokens     {usage.total_input:,} in ({usage.cache_hit_rate:.1%} from the cache), {usage.output:,} out; "
            f"{counted(summary.calls, 'call')}, {summary.usd:.4f} USD" + _planned_words(summary)
        )
    say(f"vectors    {summary.embedded} embedded, {summary.reused} reused ({pipeline.embedder.name})")
    if summary.truncated:
        say(f"truncated  {summary.truncated} texts were longer than the embedder's window")
    for upkeep in summary.upkeep:
        freed = upkeep.bytes_before - upkeep.bytes_after
        say(f"optimized  {upkeep.table}: {upkeep.reason}" + (f", {freed:,} bytes freed" if freed > 0 else ""))
    if summary.switched_to:
        say(f"switched   search now uses {summary.switched_to}")
    say(f"storage    {pipeline.store.uri}")
    say(f"run        {summary.run_id}  ({summary.seconds:.1f} s)")


def _left_out_lines(summary: Summary) -> list[str]:
    """The documents that were removed, by name, and the files that no pattern names, by extension."""
    lines = [f"removed    {doc_id}" for doc_id in summary.removed_documents[:LISTED]]
    if summary.removed > LISTED:
        lines.append(f"removed    … and {summary.removed - LISTED} more")
    words = summary.not_indexed.words()
    return lines + [f"not indexed: {words}"] * bool(words)


def _planned_words(summary: Summary) -> str:
    if summary.planned is None or not summary.planned.is_priced:
        return ""
    from ctx_pipeline.contexts.estimate import usd_range

    return f" (planned {usd_range(summary.planned.chosen)})"


def _size_words(pipeline: Pipeline) -> str:
    from ctx_pipeline.chunking.model import embedder_chunk_tokens

    ceiling = pipeline.settings.chunking.max_tokens
    return f"at most {ceiling} of o200k_base and {embedder_chunk_tokens(pipeline.embedder)} of the embedder each"


def _failure_lines(summary: Summary) -> list[str]:
    lines = [f"failed: {doc_id}: {reason}" for doc_id, reason in list(summary.failures.items())[:LISTED]]
    if len(summary.failures) > LISTED:
        lines.append(f"failed: {len(summary.failures) - LISTED} more; `ctx-pipeline status` lists them")
    standing = [doc_id for doc_id in summary.standing if doc_id not in summary.failures]
    if standing:
        lines.append(
            f"{counted(len(standing), 'document')} failed before, waiting for a change, such as {standing[0]}: "
            f"{summary.standing[standing[0]]} (`--retry` tries them now)"
        )
    return lines


def _print_plan(plan: Plan, pipeline: Pipeline, as_json: bool, *, renew: bool) -> None:
    from ctx_pipeline.index.ledger import Ledger
    from ctx_pipeline.index.plan import plan_counts

    counts = plan_counts(plan, Ledger.read(pipeline.store).indexed())
    costs = pipeline.context_plan(plan, renew=renew)
    if as_json:
        owed = [{"doc_id": w.doc_id, "stage": w.stage.name.lower(), "reason": w.reason} for w in plan.work]
        found = {
            "documents": counts,
            "work": owed,
            "removed": plan.removed,
            "not_indexed": plan.not_indexed.to_json(),
            "warnings": plan.warnings,
        }
        if costs is not None:
            from ctx_pipeline.costs import contexts_json

            found["contexts"] = contexts_json(costs)
        say_json(found)
        return
    say("would do   " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    if plan.not_indexed.files:
        say(f"not indexed: {plan.not_indexed.words()}")
    if costs is not None:
        say(f"contexts   {costs.line() or 'nothing to pay for'}")
    lines = [f"{work.stage.name.lower():10} {work.doc_id}  ({work.reason})" for work in plan.work]
    lines += [f"{'remove':10} {doc_id}" for doc_id in plan.removed]
    say(*lines[:PLANNED])
    if len(lines) > PLANNED:
        say(f"… and {len(lines) - PLANNED} more (--json lists all)")
    say(*plan.warnings, err=True)


@cli.command()
@click.argument("doc")
@json_option
def show(doc: str, as_json: bool) -> int:
    """Show a document's chunks and contexts. DOC is `<source>/<path>`, or a path below a source."""
    from ctx_pipeline.inspection import document_rows, document_warnings

    pipeline = open_pipeline()
    rows = document_rows(pipeline, doc)
    for warning in document_warnings(pipeline, doc):
        say(f"{doc}: {warning}", err=True)
    if as_json:
        say_json(rows)
        return DONE
    from ctx_pipeline.display import chunk_blocks

    say_text(chunk_blocks(rows))
    return DONE


@cli.command()
@source_option
@json_option
def status(source: Path | None, as_json: bool) -> int:
    """Compare the sources with what is indexed. Exits with 1 when anything is owed, failed or warned of."""
    from ctx_pipeline.inspection import index_status

    found = index_status(open_pipeline(source))
    if as_json:
        say_json(found)
    else:
        from ctx_pipeline.display import status_lines

        say(*status_lines(found))
    return FOUND if found["owed"] or found["failed"] or found["warnings"] else DONE


@cli.command()
@click.option("--fix", "fixing", is_flag=True, help="Repair what needs no source; damaged documents become owed.")
@click.option("--verify", is_flag=True, help="Hash every file, whatever its size and mtime.")
@json_option
def doctor(fixing: bool, verify: bool, as_json: bool) -> int:
    """Compare sources, ledger, tables, indexes and partition keys; each finding names its remedy."""
    from dataclasses import asdict

    from ctx_pipeline.defs.launch import partition_doc_ids, reconcile_partitions
    from ctx_pipeline.doctor import diagnose, fix
    from ctx_pipeline.exposure import exposure
    from ctx_pipeline.index.lock import storage_lock

    pipeline = open_pipeline()
    name = pipeline.settings.dagster.partitions
    if fixing:
        with storage_lock(pipeline.store.uri, "doctor --fix"):
            say(*fix(pipeline), *reconcile_partitions(name, pipeline), err=True)
    keys: Callable[[], set[str]] = lambda: partition_doc_ids(name)  # noqa: E731
    findings = [*diagnose(pipeline, keys, verify=verify), *exposure(pipeline.store)]
    if as_json:
        say_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            say(f"{finding.severity:8} {finding.check}: {finding.message}", f"         remedy: {finding.remedy}")
        if not findings:
            say("everything agrees: sources, ledger, tables, indexes and partition keys")
    return FOUND if findings else DONE


if __name__ == "__main__":
    main()
