"""What the full-text columns hold of a text, and what they are asked for a query."""

from __future__ import annotations

import re
import unicodedata

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

_VERSION_NUMBER = re.compile(r"v?\d+(?:\.\d+){2,}", re.IGNORECASE)

# Names that are written with symbols, at which the index divides words: each is a word of its own.
_SYMBOLIC = re.compile(
    r"(?<![\w+#])(?P<name>[A-Za-z]\w*)(?P<mark>\+\+(?P<version>\d{0,4})|\#)(?![\w+#])"  # C++, C++17, g++, F#
    r"|(?<![\w*])(?P<starred>[A-Za-z])\*(?![\w*])"  # A*, but not *A*
    r"|(?<![\w.])\.(?P<dotted>[A-Za-z][\w-]*)"  # .NET, .htaccess
    r"|(?<![\w/&])(?P<joined>[A-Z][A-Z0-9]{0,4}(?:[/&][A-Z0-9]{1,5}){1,3})(?![\w/&])"  # I/O, TCP/IP, R&D, AT&T
)
_MARKED = re.compile(r"(?<![\w-])--[A-Za-z][\w-]+|(?<![\w@.])@[A-Za-z][\w-]+|(?<![\w#&])#[A-Za-z][\w-]+|\$[A-Za-z_]\w+")
"""--force, @dataclass, #include, $PATH: words of the index without the mark, and identifiers with it."""

# Characters that are not seen and cut the words they stand in: soft hyphen, grapheme joiner, marks of direction, word
# joiner, variation selectors, byte order mark.
_UNSEEN = dict.fromkeys(
    [0xAD, 0x34F, 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x2070), *range(0xFE00, 0xFE10), 0xFEFF]
)
# Zero width space, non-joiner and joiner: they divide words in Thai and Khmer and parts of words in Persian and Hindi,
# where the index divides at them too, as at the spaces that others write there.
_ZERO_WIDTH = re.compile("[\u200b-\u200d]+")
_USES_ZERO_WIDTH = re.compile("[\u0590-\u10ff\u1200-\u1cff\ua8e0-\ua95f\ua980-\uabff]")
# Ligatures, long s, micro sign, full and half width, letters of formulas, joined forms of Arabic: other shapes of the
# same letters. Not NFKC for all: it would make `ClaudeTM` of `Claude™`, `m2` of `m²` and `101⁄2` of `10½`.
_SHAPES = re.compile("[\u00b5\u017f\ufb00-\ufdcf\ufe70-\ufefc\uff01-\uff5e\uff65-\uffdc\U0001d400-\U0001d7ff]+")
_ACCENTS = re.compile("[\u0300-\u036f]+")

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
_JOINED = re.compile(r"[a-z0-9]{1,5}(?:[/&][a-z0-9]{1,5}){1,3}")
_PUNCTUATION = ".,;:!?¡¿()\"'«»“”"


def normalized(text: str) -> str:
    """The text as full text and queries are compared: composed (NFC), without characters that are not seen.

    The index folds accents; one that has no composed letter would cut its word, and is dropped.
    """
    if text.isascii():
        return text
    text = _ZERO_WIDTH.sub(_joined, text.translate(_UNSEEN))
    text = _SHAPES.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)
    return unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFC", text)))


def _joined(found: re.Match[str]) -> str:
    around = found.string[max(0, found.start() - 1) : found.start()] + found.string[found.end() : found.end() + 1]
    return found[0][0] if _USES_ZERO_WIDTH.search(around) else ""


def indexed_text(text: str) -> str:
    """The text, and below it the words of its compound names: `parse HTTP Header` for `parseHTTPHeader`, and a word
    for each name with symbols: `cplusplus` for `C++`.

    The index itself divides words at everything but letters and digits, so that `error_code` needs nothing here.
    """
    parts = [" ".join(words) for word in dict.fromkeys(_WORD.findall(text)) if len(words := _words(word)) > 1]
    parts += dict.fromkeys(_spelt(found) for found in _SYMBOLIC.finditer(text))
    return "\n".join([text, " ".join(parts)]) if parts else text


def query_text(query: str, *, found_whole: bool = False) -> str:
    """What of a query the full-text columns are asked for: no function words, and the words of compound names too.

    A query of function words alone stays as it is. With `found_whole`, rows hold the query's identifiers: then a
    version number such as `5.0.0` is not asked for by its parts, which other releases share, and nothing may be left.
    """
    words = query.split()
    if found_whole:
        words = [word for word in words if not _VERSION_NUMBER.fullmatch(word.strip(_PUNCTUATION))]
    telling = [word for word in words if _is_name(word) or word.strip(_PUNCTUATION).lower() not in _FUNCTION_WORDS]
    return indexed_text(" ".join(telling or words))


def _is_name(word: str) -> bool:
    """`IT` and `A*` are no function words."""
    return (word.isupper() and len(word) > 1) or _SYMBOLIC.search(word) is not None


def identifiers(text: str) -> list[str]:
    """The identifiers of a text, lower case, each once: `ts-999`, `error_code`, `v2.3.1`, `c++`, `.net`, `--force`.

    Names without a separator, such as `getTarget`, are words like others: the full-text columns hold them whole.
    """
    tokens = (token.strip(_EDGES) for token in _TOKEN.findall(text.translate(_DASHES)))
    found = [token for token in tokens if _is_identifier(token)]
    found += [name[0] for pattern in (_SYMBOLIC, _MARKED) for name in pattern.finditer(text) if _fits(name[0])]
    return list(dict.fromkeys(name.casefold() for name in found))


def indexed_identifiers(text: str) -> str:
    """What the identifier column holds of a text: its identifiers, and those inside a path or a qualified name."""
    found = identifiers(text)
    inner = [part for name in found for part in re.split(r"[./:]+", name) if part != name and _is_identifier(part)]
    inner += [f"{name['name']}++".casefold() for name in _SYMBOLIC.finditer(text) if name["version"] and _fits(name[0])]
    return " ".join(dict.fromkeys([*found, *inner]))


def asked_identifiers(query: str) -> str:
    """What the identifier column is asked for a query: its identifiers, and any word with a symbol inside, such as
    `i/o`, that a text may hold in capitals; where it is no identifier of any text, nothing comes of it."""
    words = (word.strip(_PUNCTUATION).casefold() for word in query.split())
    return " ".join(dict.fromkeys([*identifiers(query), *(word for word in words if _JOINED.fullmatch(word))]))


def _spelt(name: re.Match[str]) -> str:
    """`cplusplus` and `cplusplus17`, `fsharp`, `astar`, `dotnet`, `io`: as people spell them."""
    if name["mark"] == "#":
        return f"{name['name']}sharp"
    if name["name"]:
        word = f"{name['name']}plusplus"
        return f"{word} {word}{name['version']}" if name["version"] else word
    if name["starred"]:
        return f"{name['starred']}star"
    return f"dot{name['dotted']}" if name["dotted"] else re.sub("[/&]", "", name["joined"])


def _is_identifier(token: str) -> bool:
    return _fits(token) and _IDENTIFIER.match(token) is not None


def _fits(token: str) -> bool:
    return len(token) <= IDENTIFIER_CHARACTERS


def _words(word: str) -> list[str]:
    return _PART.findall(word) if len(word) <= WORD_CHARACTERS else []
