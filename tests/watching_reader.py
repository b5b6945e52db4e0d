"""A reader in a process of its own: `python -m tests.watching_reader INDEX`, until its standard input closes.

Reads the live rows over and over, and prints at the end, as JSON, the number of reads and every document that was
seen with other ordinals than 0..n-1 or with several contents, or that was missing although it is never deleted.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import defaultdict
from pathlib import Path

from ctx_pipeline.index.tables import Store


def main(uri: str) -> None:
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    store, reads, problems, always = Store(Path(uri)), 0, set(), None
    while not stop.is_set():
        documents = defaultdict(list)
        for row in store.all_rows("search_1", ["doc_id", "ordinal", "content_hash"]).to_pylist():
            documents[row["doc_id"]].append(row)
        for doc_id, rows in documents.items():
            if sorted(row["ordinal"] for row in rows) != list(range(len(rows))):
                problems.add((doc_id, "ordinals"))
            if len({row["content_hash"] for row in rows}) != 1:
                problems.add((doc_id, "several contents"))
        kept = {doc_id for doc_id in documents if "kept" in doc_id}
        always = kept if always is None else always
        problems |= {(doc_id, "missing") for doc_id in always - kept}
        reads += 1
    print(json.dumps({"reads": reads, "problems": sorted(problems), "watched": len(always or ())}))


if __name__ == "__main__":
    main(sys.argv[1])
