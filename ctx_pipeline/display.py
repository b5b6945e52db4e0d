"""How results look on a terminal. Document text is never read as markup, and a name stays on its line."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from ctx_pipeline.answers.answer import Answer
from ctx_pipeline.documents.not_indexed import words
from ctx_pipeline.escaping import one_line, printable
from ctx_pipeline.index.search import Hit
from ctx_pipeline.rerank.model import Reranked

SNIPPET_CHARACTERS = 320
LISTED = 20


def hits_table(hits: Sequence[Hit], query: str) -> Table:
    """Rank, score with the legs' ranks, place, and the context above the part of the chunk nearest to the query."""
    table = Table(show_lines=True, pad_edge=False)
    table.add_column("#", justify="right")
    table.add_column("score", justify="right")
    table.add_column("document:line", overflow="fold", max_width=36)
    table.add_column("context and passage", overflow="fold", ratio=1)
    for rank, hit in enumerate(hits, start=1):
        legs = f"{hit.score:.4f}\nvector {hit.vector_rank or '-'}\nkeyword {hit.keyword_rank or '-'}"
        legs += "" if hit.rerank_score is None else f"\nreranked {hit.rerank_score:.3f}"
        passage = Text(printable(hit.context), style="dim")
        passage.append("\n" if hit.context else "")
        passage.append(snippet(hit.text, query), style="not dim")
        table.add_row(str(rank), legs, Text(one_line(f"{hit.doc_id}:{hit.line}{_page(hit.page)}")), passage)
    return table


def _page(number: int | None) -> str:
    return "" if number is None else f", page {number}"


def rerank_line(report: Reranked) -> str:
    """What reranking took, in words."""
    usd = "cost unknown" if report.usd is None else f"{report.usd:.4f} USD"
    tokens = "" if report.tokens is None else f", {report.tokens:,} tokens"
    return f"reranked by {report.model}: {report.seconds:.2f} s, {usd}{tokens}"


def snippet(text: str, query: str) -> str:
    """Some 300 characters of a chunk from the line that shares most words with the query; blank lines folded."""
    lines = [line for line in (" ".join(line.split()) for line in text.splitlines()) if line]
    stems = {_stem(word) for word in re.findall(r"\w{3,}", query)}
    shared = [len(stems & {_stem(word) for word in re.findall(r"\w{3,}", line)}) for line in lines]
    first = shared.index(max(shared, default=0)) if lines else 0
    while first and len("\n".join(lines[first - 1 :])) <= SNIPPET_CHARACTERS:
        first -= 1  # all of a short rest is shown
    rest = "\n".join(lines[first:])
    cut = rest[:SNIPPET_CHARACTERS].rstrip()
    return ("… " if first else "") + printable(cut) + ("…" if len(rest) > len(cut) else "")


def _stem(word: str) -> str:
    """The first letters without accents: enough to tell which line a query is about."""
    return "".join(c for c in unicodedata.normalize("NFD", word.casefold()) if not unicodedata.combining(c))[:5]


def answer_lines(answer: Answer) -> list[str]:
    """The passages that an answer rests on, and what it cost: lines to stand below its text."""
    lines = [""]
    for citation in answer.citations:
        heading = f"  {' › '.join(citation.heading_path)}" if citation.heading_path else ""
        place = f"{citation.doc_id}:{citation.first_line}-{citation.last_line}{heading}"
        lines.append(f"[{citation.number}] {place}")
    if not answer.answered:
        lines.append("the passages do not hold the answer")
    return [*lines, f"{answer.model}, {answer.usd:.5f} USD"]


def chunk_blocks(rows: Sequence[Mapping[str, Any]]) -> str:
    """A document's chunks, each under its context."""
    if not rows:
        return "the document has no text, or front matter alone: no chunks"
    blocks = [f"{one_line(rows[0]['doc_id'])}: {len(rows)} chunks, {sum(row['tokens'] for row in rows):,} tokens"]
    for row in rows:
        status = row["status"] or "no context"
        reason = f": {row['reason']}" if row["reason"] else ""
        blocks.append(
            f"--- {one_line(row['chunk_id'])}  line {row['line']}{_page(row['page'])}, "
            f"characters {row['start']}-{row['end']}, {row['tokens']} tokens\n"
            f"context ({status}{one_line(reason)}): {row['context'] or '-'}\n\n"
            f"{row['text'].replace(chr(9), '    ')}"
        )
    return "\n\n".join(blocks)


def status_lines(found: Mapping[str, Any]) -> list[str]:
    """The answer of `status` in words."""
    contexts = ", ".join(f"{count} {name}" for name, count in found["contexts"].items()) or "none"
    sources = ", ".join(f"{name} {count}" for name, count in found["by_source"].items()) or "none"
    lines = [
        f"storage    {found['storage']}  ({found['bytes'] / 1e6:.1f} MB)",
        f"documents  {found['documents']}  ({sources})",
        f"chunks     {found['chunks']}, {found['tokens']:,} tokens; {found['rows_searchable']} rows searchable "
        f"in {found['search_table'] or 'no table'}",
        f"contexts   {contexts} ({found['context_method_note'] or found['context_method']})",
        f"embedder   {found['embedding_model']}",
        f"indexed    {found['last_indexed'] or 'never'}",
    ]
    if found["owed"]:
        lines.append(
            "owed       " + ", ".join(f"{found['owed'][name]} {name}" for name in ("added", "changed", "removed"))
        )
    else:
        lines.append("owed       nothing")
    for title, reasons in (("pending", found["contexts_pending"]), ("fallback", found["contexts_fallback"])):
        entries = list(reasons.items())
        lines += [f"{title:10} {count}: {reason}" for reason, count in entries[:LISTED]]
    for title in ("failed", "skipped"):
        entries = list(found[title].items())
        lines += [f"{title}     {doc_id}: {reason}" for doc_id, reason in entries[:LISTED]]
        if len(entries) > LISTED:
            lines.append(f"{title}     … and {len(entries) - LISTED} more (--json lists all)")
    lines += _left_out_lines(found["not_indexed"], found["ignored"])
    return lines + [f"warning    {warning}" for warning in found["warnings"]]


def _left_out_lines(not_indexed: Mapping[str, Any], ignored: Mapping[str, str]) -> list[str]:
    """What is no document, by extension and by name, and what a .gitignore or its kind leaves out."""
    lines = []
    if not_indexed["files"]:
        lines.append(f"not indexed: {words(not_indexed['files'], not_indexed['by_extension'])}")
        lines += [f"           {name}" for name in not_indexed["names"][:LISTED]]
        if not_indexed["files"] > LISTED:
            lines.append(f"           … and {not_indexed['files'] - LISTED} more")
    lines += [f"ignored    {place}: {why}" for place, why in list(ignored.items())[:LISTED]]
    if len(ignored) > LISTED:
        lines.append(f"ignored    … and {len(ignored) - LISTED} more (--json lists all)")
    return lines
