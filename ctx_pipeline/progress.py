"""How far a refresh is, for a terminal and for a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from ctx_pipeline.contexts.model import Progress
from ctx_pipeline.terminal import say

INTERVAL_S = 5.0
"""Lines of a log come at most this often."""


class ContextLine:
    """Describes the contexts so far: tokens, USD, and USD a minute since the first call."""

    def __init__(self) -> None:
        self._first: tuple[float, Progress] | None = None

    def cost(self, progress: Progress) -> str:
        """`1,234,567 tokens, 0.4213 USD (0.1300 a minute)`."""
        now = time.monotonic()
        started, first = self._first = self._first or (now, progress)
        minutes = (now - started) / 60
        text = f"{progress.usage.total_input + progress.usage.output:,} tokens, {progress.usd:.4f} USD"
        return text + (f" ({float(progress.usd - first.usd) / minutes:.4f} a minute)" if minutes > 1 / 60 else "")

    def text(self, progress: Progress) -> str:
        """`312 of 4,096 contexts: `, what `cost` says, and the share of the prompts that the cache held."""
        text = f"{progress.done:,} of {progress.total:,} contexts: {self.cost(progress)}"
        return f"{text}, {progress.usage.cache_hit_rate:.0%} of the prompts from the cache"


class Throttle:
    """Lets one message through per interval, and every last one."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s, self._last = interval_s, float("-inf")

    def __call__(self, done: int, total: int) -> bool:
        """Whether `done` of `total` is to be told now."""
        now = time.monotonic()
        if done < total and now - self._last < self._interval_s:
            return False
        self._last = now
        return True


class TerminalProgress:
    """Documents and contexts done: bars on a terminal, lines elsewhere, nothing when `quiet`."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bars: dict[str, Any] = {}
        self._line, self._told = ContextLine(), {"documents": Throttle(), "contexts": Throttle()}

    def documents(self, done: int, total: int) -> None:
        """Documents that are indexed."""
        self._tell("documents", done, total, lambda: f"{done} of {total} documents", "")

    def contexts(self, progress: Progress) -> None:
        """Contexts that are written, of the documents at hand."""
        cost = self._line.cost(progress)
        self._tell("contexts", progress.done, progress.total, lambda: self._line.text(progress), cost)

    def _tell(self, name: str, done: int, total: int, line: Callable[[], str], beside: str) -> None:
        if self._quiet:
            return
        if not sys.stderr.isatty():
            if self._told[name](done, total):
                say(line(), err=True)
            return
        import click

        bar = self._bars.get(name)
        if bar is None:
            bar = click.progressbar(length=total, label=name, file=sys.stderr, item_show_func=str, width=0)
            self._bars[name] = bar
        bar.update(done - bar.pos, beside)
        if done == total:
            bar.render_finish()
            del self._bars[name]
