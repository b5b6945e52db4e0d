"""A refresh as a Dagster run that kills its own process at a commit point: `python -m tests.killed_refresh POINT [N]`.

POINT is the name of a durable step (the N-th time it is reached, from 1), or `after-ms:<milliseconds>` from the start
of the refresh. Prints every commit point that was reached, and exits with 0 when none killed it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from ctx_pipeline.defs.launch import run_refresh
from ctx_pipeline.defs.refresh import Report
from ctx_pipeline.refresh import Pipeline
from ctx_pipeline.summary import RefreshOptions


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(point: str, nth: int = 1) -> None:
    reached: dict[str, int] = {}
    original = Pipeline.refresh

    def refresh(self: Pipeline, *arguments: object, **options: object) -> object:
        if point.startswith("after-ms:"):
            threading.Timer(float(point.partition(":")[2]) / 1000, die).start()

        def on_commit(name: str) -> None:
            reached[name] = reached.get(name, 0) + 1
            print(name, flush=True)
            if name == point and reached[name] == nth:
                die()

        return original(self, *arguments, **{**options, "on_commit": on_commit})  # type: ignore[arg-type]

    Pipeline.refresh = refresh  # type: ignore[method-assign, assignment]
    run_refresh(Report(), RefreshOptions())
    os._exit(0)  # no timer may fire after the end


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1)
