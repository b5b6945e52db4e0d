"""What to try against a failure: the settings and commands that could mend it, with the values they have now."""

from __future__ import annotations

from collections.abc import Sequence

from ctx_pipeline.chunking.model import embedder_chunk_tokens
from ctx_pipeline.evaluation.findings import Cause, Diagnosis, Finding
from ctx_pipeline.evaluation.metrics import DEPTH
from ctx_pipeline.refresh import Pipeline

OVERLAP_SHARE = 4
"""A usual overlap is a quarter of the chunk."""
ENOUGH_SHARED_WORDS = 2
LISTED = 5


class Advisor:
    """Advice for the findings of one diagnosis under the pipeline's settings."""

    def __init__(self, pipeline: Pipeline, diagnosis: Diagnosis) -> None:
        self._settings, self._diagnosis = pipeline.settings, diagnosis
        self._chunk_tokens = embedder_chunk_tokens(pipeline.embedder)
        current = self._settings.search.rerank
        self._rerank = (
            "set search.rerank" if current == "none" else f"see by `eval` what search.rerank = {current} mends"
        )

    def of(self, finding: Finding) -> str:
        """What to try first for one finding."""
        match finding.cause:
            case "document_missing" | "stale_span":
                return finding.reason
            case "duplicate":
                return (
                    f"rank {finding.copy_rank} ({finding.copy}) holds the same passage, so the answer is found: "
                    "add its span to the query, or `exclude` one of the copies"
                )
            case "cut":
                return self._cut(finding)
            case "orphan":
                return self._orphan(finding)
            case "one_leg":
                return self._one_leg(finding)
            case "ranked_low":
                return self._ranked_low(finding)
            case "absent":
                return self._absent(finding)

    def of_cause(self, cause: Cause) -> str:
        """What to try for all findings of a cause."""
        match cause:
            case "document_missing":
                return "correct `include` and `exclude` of the sources or `doc` in the query file; refresh"
            case "stale_span":
                return "correct the spans in the query file: the documents were edited since"
            case "duplicate":
                return "these are answered by a copy: add the copies' spans, or `exclude` one of them"
            case "cut":
                return self._other_cuts("DOC")
            case "orphan":
                return f"{self._other_contexts()}, so that chunks say whom and what they are about"
            case "one_leg":
                return f"{self._rerank}, or give the leg that finds more of them a larger share in search.weights"
            case "ranked_low":
                return f"{self._rerank}: it reads {self._diagnosis.candidates} candidates"
            case "absent":
                return f"{self._other_contexts()}, another embedding.model, or the readers' words in the documents"

    def _cut(self, finding: Finding) -> str:
        ranks = [piece.rank for piece in finding.pieces if piece.rank is not None and piece.rank <= DEPTH]
        found = f"a piece is found (rank {min(ranks)}), the rest is not: " if ranks else ""
        length = finding.span.end - finding.span.start
        if length > self._diagnosis.longest_chunk:
            limits = (
                f"chunking.max_tokens = {self._settings.chunking.max_tokens}, the embedder takes {self._chunk_tokens}"
            )
            bound = "" if self._diagnosis.given_chunks else f" ({limits})"
            return (
                f"{found}the passage has {length} characters, more than any chunk{bound}: mark the sentences that "
                "answer, or make chunks larger"
            )
        return f"{found}{self._other_cuts(finding.span.doc)}"

    def _other_cuts(self, doc: str) -> str:
        if self._diagnosis.given_chunks:
            return "move the boundaries in the file of chunks, or let them overlap"
        limit = min(self._settings.chunking.max_tokens, self._chunk_tokens)
        return (
            f'set chunking.overlap = {limit // OVERLAP_SHARE}, or chunking.strategy = "structure"; '
            f"`ctx-pipeline show {doc}` shows the cuts"
        )

    def _orphan(self, finding: Finding) -> str:
        sooner = "; or search.rerank" if finding.rank is not None else ""
        return f"{self._other_contexts()}, so that the chunk says what it is about{sooner}"

    def _other_contexts(self) -> str:
        if self._settings.contexts.method == "none":
            return 'set contexts.method = "outline" or "claude"'
        if self._settings.contexts.method == "outline":
            return 'set contexts.method = "claude"'
        return "name it in the text or in a heading above"

    def _one_leg(self, finding: Finding) -> str:
        vector = finding.vector_rank is not None and finding.vector_rank <= DEPTH
        found, other = ("vector", "keyword") if vector else ("keyword", "vector")
        rank = finding.keyword_rank if vector else finding.vector_rank
        there = f"the {other} leg has it at {rank}" if rank else f"the {other} leg does not have it at all"
        weights = f"a larger share of the {found} leg in search.weights"
        return f"{self._wording(finding)}{there}: {self._rerank}, or {weights}"

    def _ranked_low(self, finding: Finding) -> str:
        if finding.rank is None:
            deeper = f"after fusion it is below the first {self._diagnosis.candidates}: raise search.candidates, and "
        else:
            deeper = (
                f"it is number {finding.rank} of the {self._diagnosis.candidates} candidates that a reranker reads: "
            )
        return f"{self._wording(finding)}{deeper}{self._rerank}"

    def _absent(self, finding: Finding) -> str:
        wording = self._wording(finding)
        if len(finding.shared) >= ENOUGH_SHARED_WORDS:
            return (
                f"{wording}the shared words ({_listed(finding.shared)}) are in many better chunks: raise "
                f"search.candidates, and {self._rerank}"
            )
        words = f"only {_listed(finding.shared)}" if finding.shared else "no word"
        return f"{wording}question and chunk share {words}: {self._other_contexts()}, or try another embedding.model"

    @staticmethod
    def _wording(finding: Finding) -> str:
        """What is wrong with the question itself, if anything."""
        if finding.named:
            return ""
        if finding.unsaid:
            return f"the document never says {_listed(finding.unsaid)}: use its words, or put these into it; "
        return "nothing in the question tells this document from others: ask with a name; "


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:LISTED])
