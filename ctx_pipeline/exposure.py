"""Whether other users of the machine can read an index that an earlier version made."""

from __future__ import annotations

from ctx_pipeline.doctor import Finding
from ctx_pipeline.index.tables import Store
from ctx_pipeline.private_files import is_open_to_others


def exposure(store: Store) -> list[Finding]:
    """A finding where the index's folder is open to all. Its mode is left alone: a reader's account may need it."""
    if not store.exists() or not is_open_to_others(store.uri):
        return []
    message = f"every user of this machine can read the documents in {store.uri}"
    remedy = f"run `chmod 700 {store.uri}`, or `chmod 750` where an account of its group reads the index"
    return [Finding("permissions", "warning", message, remedy)]
