"""Running the packaged models by onnxruntime."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


def load_runtime() -> Any:
    """onnxruntime, without its telemetry: events would be recorded in the user's cache folder, and perhaps sent."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return importlib.import_module("onnxruntime")


def open_session(model: bytes | Path) -> Any:
    """A session whose runs take one thread each; it may be run from several threads."""
    onnxruntime = load_runtime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def embed_each(inputs: Sequence[T], vector: Callable[[T], NDArray[np.float32]]) -> NDArray[np.float32]:
    """`vector` of each input, of which there is at least one: shape (len(inputs), dimension)."""
    # One text a run, one thread a run, as many runs as cores: per-tensor quantization makes a batch's vectors
    # depend on each other, and on 2 cores this embeds 8-16 % more texts than two threads inside each run.
    with ThreadPoolExecutor(min(_usable_cores(), len(inputs))) as pool:
        return np.stack(list(pool.map(vector, inputs)))


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
