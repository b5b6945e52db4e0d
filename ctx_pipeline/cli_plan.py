"""The command that tells what a refresh would cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ctx_pipeline.cli_options import DONE, json_option, open_pipeline, source_option
from ctx_pipeline.terminal import say, say_json

if TYPE_CHECKING:
    from ctx_pipeline.contexts.estimate import Estimate
    from ctx_pipeline.costs import RefreshCosts

_COLUMNS = ("calls", "uncached", "cache write", "cache read", "output", "USD")
_WIDTHS = (8, 14, 14, 14, 11, 18)
_TITLES = {"no caching": "no caching, 1 a call", "caching": "caching, 1 a call", "batches": "batches, 1 a call"}
_TABLE_NOTE = [
    "Thousands of the model's tokens: those of o200k_base, and half as many again; answers of 25 to 150 tokens."
]
_BATCH_NOTE = ["batches: half price; 98 % to 30 % of the later calls of a view find it in the cache, for one hour."]


@click.command()
@source_option
@click.option(
    "--renew", is_flag=True, help="Count contexts of an earlier wording, as `refresh --renew` would ask again."
)
@json_option
def plan(source: Path | None, renew: bool, as_json: bool) -> int:
    """Tell what a refresh would do and cost, before paying. Asks nobody, needs no key and writes nothing.

    Where contexts.method costs nothing, tell what `claude` would cost.
    """
    from ctx_pipeline.costs import costs_json, refresh_costs

    costs = refresh_costs(open_pipeline(source), renew=renew)
    if as_json:
        say_json(costs_json(costs))
        return DONE
    say(*_lines(costs))
    say(*costs.plan.warnings, err=True)
    return DONE


def _lines(costs: RefreshCosts) -> list[str]:
    planned, not_indexed = costs.contexts, costs.plan.not_indexed.words()
    shared = planned.chunks - planned.wanted - planned.paid - planned.free
    supposed = f"contexts.method {costs.supposed_for} costs nothing; with contexts.method claude instead:"
    lines = [
        *([supposed] if costs.supposed_for else []),
        "documents  " + ", ".join(f"{count:,} {name}" for name, count in costs.documents.items()),
        *([f"not indexed: {not_indexed}"] if not_indexed else []),
        f"chunks     {planned.chunks:,} of {planned.documents:,} documents to see to, {planned.tokens:,} tokens of "
        "o200k_base",
        f"contexts   {planned.wanted:,} to be paid for; {planned.paid:,} are paid for, {planned.free:,} need no call"
        + (f", {shared:,} are those of equal text" if shared else ""),
        f"method     {planned.method} ({planned.model}, {planned.chunks_per_call} a call, windows of "
        f"{planned.window_tokens:,} tokens)",
    ]
    if planned.wanted:
        lines += ["", *_strategies(costs)]
    if planned.wanted and planned.curve:
        lines += ["", *_curve(costs)]
    return [*lines, "", *(f"- {line}" for line in costs.advice)]


def _strategies(costs: RefreshCosts) -> list[str]:
    planned = costs.contexts
    rows = [_row(_TITLES.get(name, name), found, planned.is_priced) for name, found in planned.strategies.items()]
    return [
        _aligned("strategy", *_COLUMNS),
        *rows,
        *_TABLE_NOTE,
        *(_BATCH_NOTE if "batches" in planned.strategies else []),
        "",
        f"a refresh  {planned.line()}",
    ]


def _curve(costs: RefreshCosts) -> list[str]:
    planned = costs.contexts
    whole = max(planned.curve)
    rows = []
    for tokens, found in planned.curve.items():
        name = f"whole, to {tokens:,}" if tokens == whole else f"{tokens:,}"
        rows.append(_row(name + (" (set)" if tokens == planned.window_tokens else ""), found, planned.is_priced))
    return [_aligned("window_tokens", *_COLUMNS), *rows]


def _row(name: str, found: Estimate, is_priced: bool) -> str:
    from ctx_pipeline.contexts.estimate import usd_range

    tokens = (f"{low / 1e3:,.0f}-{high / 1e3:,.0f}" for low, high in found.tokens().values())
    return _aligned(name, f"{found.calls:,}", *tokens, usd_range(found) if is_priced else "not known")


def _aligned(name: str, *cells: str) -> str:
    return f"{name:23}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))
