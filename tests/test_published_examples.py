"""The examples by which contextual retrieval is usually explained, on the models and the pipeline of this project.

ACME is the example of Anthropic's post of 2024 in its own words: the question, a chunk that names neither company nor
quarter, and the same chunk behind a context. The post gives no cosines. The plans are ours: two sections of a document
whose paragraphs on the limit do not name their plan.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ctx_pipeline.embedding.e5 import E5Embedder
from ctx_pipeline.embedding.minilm import MiniLMEmbedder
from ctx_pipeline.index.search import Mode, SearchIndex
from tests.project import Project
from tests.test_e5 import CONTEXTUAL, PLAIN, QUESTION

GLOBEX = (
    "This chunk is from an SEC filing on Globex Corp's performance in Q2 2023; "
    "the previous quarter's revenue was $128 million. The company's revenue grew by 7% over the previous quarter."
)
OTHERS = (
    "The company's operating margin was 12% in the same period, two points below that of the year before.",
    "ACME Corp opened a warehouse in Rotterdam in 2021 and hired forty people.",
    "Revenue is recognized when control of a product passes to the customer.",
)

PLANES = """# Planes y precios

## Plan Free

Para probar el servicio sin coste: una persona, un proyecto y un mes de historial. No pide tarjeta y se puede dejar en \
cualquier momento desde la página de la cuenta.

En este caso, el límite es de 100 peticiones por minuto. Al pasarlo, la API responde con el código 429 hasta el minuto \
siguiente.

## Plan Pro

Para equipos en producción: personas y proyectos sin tope, un año de historial y soporte por correo en horario \
laboral. Se factura cada mes por persona activa.

En este caso, el límite sube a 1.000 peticiones por minuto. Al pasarlo, las peticiones esperan en una cola de hasta 30 \
segundos.
"""
PLANS = """# Plans and prices

## Free plan

To try the service at no cost: one person, one project and a month of history. It asks for no card and can be left at \
any time from the account page, without a word to anyone.

In this case, the limit is 100 requests per minute. Beyond it, the API answers with status 429 until the next minute \
begins.

## Pro plan

For teams in production: people and projects without a cap, a year of history, and support by mail in office hours. It \
is billed every month for each active person, and taxes come on top.

In this case, the limit rises to 1,000 requests per minute. Beyond it, requests wait in a queue for up to 30 seconds.
"""
SPANISH = (
    "¿Cuántas peticiones por minuto permite el plan Pro?",
    "¿Qué límite de peticiones por minuto tiene el plan Pro?",
)
ENGLISH = ("How many requests per minute does the Pro plan allow?",)
MODES: tuple[Mode, ...] = ("hybrid", "vector", "keyword")


def plan_index(folder: Path, e5_cache_folder: Path, method: str) -> SearchIndex:
    embedding = {"model": "multilingual-e5-small", "path": str(e5_cache_folder)}
    project = Project(folder, embedding=embedding, contexts={"method": method}, chunking={"max_tokens": 64})
    project.write("planes.md", PLANES)
    project.write("plans.md", PLANS)
    project.refresh()
    return SearchIndex.open(project.settings.storage.uri, project.settings)


@pytest.fixture(scope="module")
def with_contexts(tmp_path_factory: pytest.TempPathFactory, e5_cache_folder: Path) -> SearchIndex:
    return plan_index(tmp_path_factory.mktemp("plans") / "outline", e5_cache_folder, "outline")


@pytest.fixture(scope="module")
def without_contexts(tmp_path_factory: pytest.TempPathFactory, e5_cache_folder: Path) -> SearchIndex:
    return plan_index(tmp_path_factory.mktemp("plans") / "none", e5_cache_folder, "none")


def test_e5_finds_the_contextual_chunk_by_a_clear_margin(e5_cache_folder: Path) -> None:
    embedder = E5Embedder(e5_cache_folder)
    texts = [CONTEXTUAL, PLAIN, GLOBEX, *OTHERS]
    contextual, plain, globex, *others = embedder.embed_passages(texts) @ embedder.embed_query(QUESTION)
    # fp32 gives 0.942 and 0.804; int8 0.932, 0.802 and 0.838.
    assert (contextual, plain, globex) == pytest.approx((0.932, 0.802, 0.838), abs=0.01)
    # Cosines of this model lie between 0.7 and 0.95, so 0.08 is a third of their range.
    assert contextual > max(plain, globex, *others) + 0.08


def test_an_index_answers_with_the_contextual_chunk(project: Project, e5_cache_folder: Path) -> None:
    project.write_settings(
        embedding={"model": "multilingual-e5-small", "path": str(e5_cache_folder)}, contexts={"method": "none"}
    )
    for number, text in enumerate([*OTHERS, GLOBEX, PLAIN, CONTEXTUAL]):
        project.write(f"{number}.md", text)
    project.refresh()
    index = SearchIndex.open(project.settings.storage.uri, project.settings)
    for mode in MODES:
        hits = index.search(QUESTION, mode=mode)
        assert len(hits) > 1
        assert hits[0].text == CONTEXTUAL


@pytest.mark.parametrize(
    ("question", "plain", "contextual", "globex"),
    [
        # The wording behind the figures 0.49 / 0.83 / 0.49.
        ("How did ACME's revenue change in Q2 2023?", 0.49, 0.83, 0.49),
        (QUESTION, 0.59, 0.86, 0.54),
    ],
)
def test_minilm_gives_the_known_cosines(
    minilm: MiniLMEmbedder, question: str, plain: float, contextual: float, globex: float
) -> None:
    cosines = minilm.embed_passages([PLAIN, CONTEXTUAL, GLOBEX]) @ minilm.embed_query(question)
    assert cosines.tolist() == pytest.approx([plain, contextual, globex], abs=0.02)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("question", [*SPANISH, *ENGLISH])
def test_asking_for_the_limit_of_a_plan_finds_the_chunk_of_that_plan(
    with_contexts: SearchIndex, question: str, mode: Mode
) -> None:
    first, second = with_contexts.search(question, mode=mode)[:2]
    language = "es" if question in SPANISH else "en"
    assert (first.heading_path[-1], first.doc_id) == {
        "es": ("Plan Pro", "docs/planes.md"),
        "en": ("Pro plan", "docs/plans.md"),
    }[language]
    assert ("1.000 peticiones" if language == "es" else "1,000 requests") in first.text
    assert "Pro" not in first.text
    # The chunk that says the same of the other plan comes next.
    assert "Free" in second.heading_path[-1]


@pytest.mark.parametrize(
    ("question", "mode"),
    [(question, mode) for question in SPANISH for mode in ("hybrid", "vector")],
)
def test_without_contexts_the_other_plan_comes_first(without_contexts: SearchIndex, question: str, mode: Mode) -> None:
    first = without_contexts.search(question, mode=mode)[0]
    assert "Free" in first.heading_path[-1]
    assert "100 peticiones" in first.text
