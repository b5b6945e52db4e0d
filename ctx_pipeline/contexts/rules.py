"""Rules by path: what writes the contexts of which documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.context_settings import ContextRule
from ctx_pipeline.contexts.model import NOTHING_EARLIER, Contextualizer, Earlier, Progress, Written
from ctx_pipeline.documents.model import Document
from ctx_pipeline.documents.patterns import Include


class Rules:
    """Which method the rules name for a document."""

    def __init__(self, rules: Sequence[ContextRule]) -> None:
        self._rules = [(Include([rule.glob]), rule.method) for rule in rules]

    def method(self, doc_id: str) -> str:
        """That of the first rule whose glob matches, empty when none does."""
        path = doc_id.partition("/")[2]
        return next((method for include, method in self._rules if include.matches(path)), "")


class RuledContextualizer:
    """Gives each document to the contextualizer that the first rule with a matching glob names, else to `main`."""

    def __init__(self, main: Contextualizer, others: dict[str, Contextualizer], rules: Sequence[ContextRule]) -> None:
        """`others` are those besides `main` that rules name."""
        self.method = main.method
        self.warnings = main.warnings
        named = "/".join(f"{rule.glob}={rule.method}" for rule in rules)
        used = [others[rule.method].fingerprint for rule in rules if rule.method in others]
        self.fingerprint = "|".join([main.fingerprint, named, *used])
        self._main, self._others = main, others
        self._rules = Rules(rules)

    def can_take_up(self) -> frozenset[str]:
        """See Contextualizer."""
        return self._main.can_take_up()

    def write(
        self,
        documents: Sequence[tuple[Document, Sequence[Chunk]]],
        progress: Callable[[Progress], None] = lambda progress: None,
        earlier: Mapping[str, Earlier] = NOTHING_EARLIER,
        *,
        renew: bool = False,
    ) -> list[Written | Exception]:
        """See Contextualizer."""
        found: dict[int, Written | Exception] = {}
        free = 0  # contexts that cost nothing come first

        def tell(told: Progress) -> None:
            progress(replace(told, done=told.done + free, total=told.total + free))

        for contextualizer in (*self._others.values(), self._main):
            own = [at for at, (document, _) in enumerate(documents) if self._of(document.doc_id) is contextualizer]
            results = contextualizer.write([documents[at] for at in own], tell, earlier, renew=renew)
            found.update(zip(own, results, strict=True))
            free += sum(len(documents[at][1]) for at in own)
        return [found[at] for at in range(len(documents))]

    def _of(self, doc_id: str) -> Contextualizer:
        return self._others.get(self._rules.method(doc_id), self._main)
