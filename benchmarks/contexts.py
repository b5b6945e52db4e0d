"""How long contexts by Claude take, against the least that the same calls could take.

    python -m benchmarks.contexts [--latency 1.0] [--concurrency 16] [--corpus fastapi-es/base]

Run it from the repository's folder, with the project installed. The calls go to the emulator of the tests, in a process
of its own, whose responses begin after `--latency` seconds; nothing leaves the machine. The corpus is read from
../shared/corpora. The refresh is a first one with the embedder `hashing`, and takes about a minute. Target: at most
1.15 x calls * latency / concurrency, from when the pool is wide open to the beginning of the last response. (The
longest chain of calls that wait for each other is two: the first of a view, then one of the others.) The bill, whose
tokens the emulator counts in its own way, is to lie in the range that was planned.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from decimal import Decimal
from pathlib import Path

from benchmarks.workspace import Workspace, corpus, heading, report, verdict
from ctx_pipeline.contexts.estimate import usd_range
from ctx_pipeline.index.lock import storage_lock
from ctx_pipeline.index.schemas import MEMO
from ctx_pipeline.refresh import Pipeline
from ctx_pipeline.settings_file import load_settings
from tests.emulators.bill import Bill
from tests.emulators.messages import KEY
from tests.emulators.process import emulator_process

MAX_RATIO = 1.15
RAMP_UP_CALLS = 4
"""Calls for each that may be in flight, before the pool counts as wide open."""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--corpus", default="fastapi-es/base")
    options = parser.parse_args()
    latency, concurrency = options.latency, options.concurrency
    heading(f"contexts of {options.corpus}, {concurrency} calls at once, each {latency} s")
    with tempfile.TemporaryDirectory() as folder, emulator_process("--first-token-s", str(latency)) as api:
        workspace = Workspace(Path(folder) / "work", "hashing", Path(folder) / "models")
        workspace.copy_in(corpus(options.corpus))
        os.environ.update(
            workspace.environment,
            ANTHROPIC_API_KEY=KEY,
            ANTHROPIC_BASE_URL=api.url,
            CTX_CONTEXTS__METHOD="claude",
            CTX_CONTEXTS__MAX_USD="100.0",
            CTX_CONTEXTS__CONCURRENCY=str(concurrency),
        )
        pipeline = Pipeline(load_settings())
        with storage_lock(pipeline.store.uri, "a benchmark"):
            summary = pipeline.refresh("benchmark")
        bill = api.bill()
        bill.assert_disciplined()
        print(f"  {summary.chunks_indexed} chunks, {summary.calls} calls, {summary.usd} USD")
        assert summary.planned is not None
        planned = summary.planned.chosen
        print(f"  planned {usd_range(planned)} USD")
        outside = max(planned.low.usd - bill.usd, bill.usd - planned.high.usd, Decimal(0))
        verdict("distance of the bill from the planned range", float(outside), 0, "USD")
        report("the whole refresh", [summary.seconds], "s")
        verdict("difference between the accounting and the bill", float(abs(summary.usd - bill.usd)), 0, "USD")
        verdict("answers beyond one for each row of the memo", len(bill.answered) - pipeline.store.count(MEMO), 0, "")
        verdict("the wide open pool, of the least possible", pool_ratio(bill, latency, concurrency), MAX_RATIO, "x")


def pool_ratio(bill: Bill, latency_s: float, concurrency: int) -> float:
    """Time from when the pool was wide open to the beginning of the last response, against the least possible."""
    starts = sorted(entry.started_at for entry in bill.entries)
    opened = starts[RAMP_UP_CALLS * concurrency]
    calls = sum(start >= opened for start in starts)
    ended = max(entry.began_at for entry in bill.entries if entry.began_at is not None)
    return (ended - opened) / (calls * latency_s / concurrency)


if __name__ == "__main__":
    main()
