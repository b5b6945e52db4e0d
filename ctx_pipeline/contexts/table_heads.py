"""The header row of a table, in the contexts of the chunks that hold its later rows.

It stands below what any method wrote, in the context that is embedded and put into full text: in no prompt, no memo key
and no chunk's text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.contexts.model import NOTHING_EARLIER, Context, Contextualizer, Earlier, Progress, Written
from ctx_pipeline.contexts.note import shortened
from ctx_pipeline.contexts.outline import SEPARATOR, shortened_path
from ctx_pipeline.documents.model import Document

VERSION = 1
SHARE = 3
"""A header row has at most the third part of the room for a context."""
CELL_SEPARATOR = " | "


class TableHeadContextualizer:
    """Adds header rows to the contexts of another contextualizer, but to those of the method `none`."""

    def __init__(
        self, writer: Contextualizer, max_tokens: int, count_tokens: Callable[[Sequence[str]], list[int]]
    ) -> None:
        """Contexts are at most `max_tokens` long as `count_tokens` counts, with the header row."""
        self.method = writer.method
        self.warnings = writer.warnings
        self.fingerprint = f"{writer.fingerprint}|table heads/{VERSION}"
        self._writer, self._max_tokens, self._count_tokens = writer, max_tokens, count_tokens

    def can_take_up(self) -> frozenset[str]:
        """See Contextualizer."""
        return self._writer.can_take_up()

    def write(
        self,
        documents: Sequence[tuple[Document, Sequence[Chunk]]],
        progress: Callable[[Progress], None] = lambda progress: None,
        earlier: Mapping[str, Earlier] = NOTHING_EARLIER,
        *,
        renew: bool = False,
    ) -> list[Written | Exception]:
        """See Contextualizer."""
        results = self._writer.write(documents, progress, earlier, renew=renew)
        heads = self._fitting(chunk.table_head for _, chunks in documents for chunk in chunks)
        if not heads:
            return results
        return [
            result
            if isinstance(result, Exception)
            else replace(result, contexts=self._with_heads(result.contexts, chunks, heads))
            for result, (_, chunks) in zip(results, documents, strict=True)
        ]

    def _with_heads(
        self, contexts: Sequence[Context], chunks: Sequence[Chunk], heads: dict[tuple[str, ...], str]
    ) -> list[Context]:
        texts = [
            "\n".join(filter(None, (context.text, heads.get(chunk.table_head, ""))))
            for context, chunk in zip(contexts, chunks, strict=True)
        ]
        return [
            context
            if context.method == "none" or not heads.get(chunk.table_head)
            else replace(context, text=text if count <= self._max_tokens else self._shortened(context, text))
            for context, chunk, text, count in zip(contexts, chunks, texts, self._count_tokens(texts), strict=True)
        ]

    def _shortened(self, context: Context, text: str) -> str:
        """A context and its header row, which loses nothing."""
        head = text[len(context.text) :]
        room = self._max_tokens - self._count_tokens([head])[0]
        if context.method == "outline":
            return shortened_path(context.text.split(SEPARATOR), room, self._count_tokens) + head
        return shortened([context.text], room, self._count_tokens)[0] + head

    def _fitting(self, heads: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
        """The text of each header row: as many of its first cells as have room, else the beginning of the first."""
        room = self._max_tokens // SHARE
        found = {}
        for head in dict.fromkeys(heads):
            cells = [cell for cell in head if cell]
            if not cells:
                continue
            candidates = [CELL_SEPARATOR.join(cells[:count]) for count in range(len(cells), 0, -1)]
            counts = self._count_tokens(candidates)
            fitting = (text for text, count in zip(candidates, counts, strict=True) if count <= room)
            found[head] = next(fitting, "") or shortened(cells[:1], room, self._count_tokens)[0]
        return found
