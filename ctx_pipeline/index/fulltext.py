"""What the full-text columns hold of a text, and what they are asked for a query."""

from __future__ import annotations

import re

WORD_CHARACTERS = 60
"""Longer runs of letters and digits are data, not names."""
IDENTIFIER_CHARACTERS = 200

_WORD = re.compile(r"[^\W_]+")
_PART = re.compile(r"[A-ZÀ-ÖØ-Þ]+(?![a-zß-öø-ÿ])|[A-ZÀ-ÖØ-Þ]?[a-zß-öø-ÿ]+|[0-9]+")
_TOKEN = re.compile(r"[A-Za-z0-9_À-ɏ.:/-]+")
_DASHES = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-"))
_EDGES = "._:/-"
_IDENTIFIER = re.compile(
    r".*[^\W_]_+[^\W_]"  # error_code
    r"|(?=.*[^\W\d_])(?=.*\d).*[^\W_][-._:/][^\W_]"  # TS-999, v2.3.1
    r"|\d+(?:\.\d+){2,}$"  # 2.3.1, but not 3.5
    r"|.*[^\W_]::[^\W_]"  # std::vector
    r"|(?:.*/)?[^\W_][\w-]+\.[a-z]{2,5}$"  # config.yaml, but not e.g
)

# Closed word classes only: articles, pronouns, prepositions, conjunctions, question words, auxiliaries. LanceDB drops
# the stop words of a column's own language, which leaves "the" in the Spanish column and "what" in both: rare words in
# source code and tables, and therefore strong ones there.
_ENGLISH = """
a about above after again against all am an and any are as at be because been before being below between both but by
can could did do does doing down during each few for from further had has have having he her here his how i if in
into is it its just me more most my no nor not of off on once only or other our out over own same she should so some
such than that the their them then there these they this those through to too under until up very was we were what
when where which while who whom whose why will with would you your
"""
_SPANISH = """
al algo algunas algunos ante antes aquel aquella como con contra cual cuales cuando cuanta cuantas cuanto cuantos
cuál cuáles cuándo cuánta cuántas cuánto cuántos cómo de del desde donde dos durante dónde e el ella ellas ellos en
entre era eran es esa esas ese eso esos esta estaba estado estar estas este esto estos está están fue fueron ha han
hasta hay la las le les lo los mi mis mucho muchos muy más nada ni nos nosotros nuestra nuestro o otra otras otro
otros para pero poco por porque que quien quienes quién quiénes qué se sea ser si sido sin sino sobre son su sus
sí también tanto te tiene tienen todo todos tu tus tú un una uno unos y ya yo
"""
_FUNCTION_WORDS = frozenset(f"{_ENGLISH}{_SPANISH}".split())
_PUNCTUATION = ".,;:!?¡¿()\"'«»“”"


def indexed_text(text: str) -> str:
    """The text, and below it the words of its compound names: `parse HTTP Header` for `parseHTTPHeader`.

    The index itself divides words at everything but letters and digits, so that `error_code` needs nothing here.
    """
    parts = [" ".join(words) for word in dict.fromkeys(_WORD.findall(text)) if len(words := _words(word)) > 1]
    return "\n".join([text, " ".join(parts)]) if parts else text


def query_text(query: str) -> str:
    """What of a query the full-text columns are asked for: no function words, and the words of compound names too.

    A query of function words alone stays as it is.
    """
    words = query.split()
    telling = [
        word
        for word in words
        if (word.isupper() and len(word) > 1) or word.strip(_PUNCTUATION).lower() not in _FUNCTION_WORDS
    ]
    return indexed_text(" ".join(telling or words))


def identifiers(text: str) -> list[str]:
    """The identifiers of a text, lower case, each once in order of first occurrence: `ts-999`, `error_code`, `v2.3.1`.

    Names without a separator, such as `getTarget`, are words like others: the full-text columns hold them whole.
    """
    tokens = (token.strip(_EDGES) for token in _TOKEN.findall(text.translate(_DASHES)))
    return list(dict.fromkeys(token.casefold() for token in tokens if _is_identifier(token)))


def indexed_identifiers(text: str) -> str:
    """What the identifier column holds of a text: its identifiers, and those inside a path or a qualified name."""
    found = identifiers(text)
    inner = [part for name in found for part in re.split(r"[./:]+", name) if part != name and _is_identifier(part)]
    return " ".join(dict.fromkeys([*found, *inner]))


def _is_identifier(token: str) -> bool:
    return len(token) <= IDENTIFIER_CHARACTERS and _IDENTIFIER.match(token) is not None


def _words(word: str) -> list[str]:
    return _PART.findall(word) if len(word) <= WORD_CHARACTERS else []
