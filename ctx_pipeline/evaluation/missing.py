"""Why a document that a query names is not in the corpus."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable

from ctx_pipeline.evaluation.corpus import Corpus
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.refresh import Pipeline


def missing_documents(pipeline: Pipeline, corpus: Corpus, docs: Iterable[str]) -> dict[str, str]:
    """For each name that is no document of the corpus, why, and what to do."""
    wanted = sorted(set(docs))
    if not wanted:
        return {}
    ledger = Ledger.read(pipeline.store)
    sources = {source.name: source for source in pipeline.settings.source}
    found: dict[str, str] = {}
    for scan in pipeline.scan_sources(ledger):
        if scan.unreachable:
            continue
        for doc in wanted:
            path = doc.removeprefix(f"{scan.name}/")
            doc_id = f"{scan.name}/{path}"
            if doc_id in scan.files:
                row = ledger.rows.get(doc_id)
                found[doc] = (
                    f"{doc_id} could not be read ({row.failure.reason}): mend it, then `ctx-pipeline refresh --retry`"
                    if row and row.failure
                    else f"{doc_id} cannot be read, or is not indexed yet: `ctx-pipeline refresh` tells"
                )
            elif doc_id in scan.skipped:
                found[doc] = f"{doc_id} is never read: {scan.skipped[doc_id]}"
            elif os.path.isfile(sources[scan.name].path / path):  # noqa: PTH113 - also False for what cannot be a path
                found[doc] = (
                    f"{doc_id} is left out by the patterns of source {scan.name!r}: change its `include` or `exclude`, "
                    "then `ctx-pipeline refresh`"
                )
    return {doc: found.get(doc) or _unknown(doc, corpus) for doc in wanted}


def _unknown(doc: str, corpus: Corpus) -> str:
    near = difflib.get_close_matches(doc, [doc_id.partition("/")[2] for doc_id in corpus.documents], 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"no source has a file {doc}: correct `doc` in the query file, or add its source{hint}"
