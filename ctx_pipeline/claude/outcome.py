"""The one place that says what came of a call: an answer, or a failure with its reason and what to do."""

from __future__ import annotations

import email.utils
import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING

from ctx_pipeline.claude.response import Received
from ctx_pipeline.errors import CtxError, FatalError, PermanentError, TransientError, counted
from ctx_pipeline.http_api import MESSAGE_CHARS

if TYPE_CHECKING:
    from anthropic import APIStatusError

_SET_KEY = "set ANTHROPIC_API_KEY to a key of the Claude Console that may use this model"

_SPEND_LIMIT_CODES = frozenset(
    {
        "enforced_spend_limit_reached",
        "contract_spend_limit_reached",
        "linked_organization_spend_limit_reached",
        "linked_organization_billing_unavailable",
    }
)
# A limit that the user set, and used-up credit, are a 400 without an error code: only the wording tells.
_SPEND_LIMIT_WORDING = ("usage limits", "credit balance")
_TOO_LONG_WORDING = ("prompt is too long", "context window", "context limit")

_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class Reason(StrEnum):
    """Why a call failed, as rows and reports show it."""

    NO_KEY = "no_key"
    AUTH = "auth"
    SPEND_LIMIT = "spend_limit"
    BUDGET = "budget"
    BAD_REQUEST = "bad_request"
    NOT_FOUND = "not_found"
    TOO_LARGE = "too_large"
    CONTEXT_WINDOW = "context_window"
    REFUSED = "refused"
    TRUNCATED = "truncated"
    EMPTY = "empty"
    NO_TEXT = "no_text"
    ODD_STOP_REASON = "odd_stop_reason"
    NOT_JSON = "not_json"
    CONFLICT = "conflict"
    RATE_LIMIT = "rate_limit"
    OVERLOADED = "overloaded"
    SERVER = "server"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    BROKEN_STREAM = "broken_stream"
    MALFORMED = "malformed"


class CallError(CtxError):
    """A call to the API that gave no answer; `reason` says why."""

    def __init__(self, message: str, reason: Reason) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type[CallError], tuple[str, Reason]]:
        return type(self), (str(self), self.reason)


class PermanentCallError(CallError, PermanentError):
    """This request will not be answered; another one may be."""


class TransientCallError(CallError, TransientError):
    """Not answered now, after all attempts."""


class FatalCallError(CallError, FatalError):
    """No request will be answered until a person has done something."""


@dataclass(frozen=True, slots=True)
class CallRemedies:
    """What messages tell the user to do, as a command such as "lower -k"."""

    prompt: str
    """About a prompt that is too long."""
    answer: str
    """About an answer that was cut."""
    rate: str
    """About a rate limit that does not go away."""


class Kind(Enum):
    """What a failure means for the request: `UNUSABLE` was paid for and may come out better when asked again."""

    TRANSIENT = "transient"
    UNUSABLE = "unusable"
    PERMANENT = "permanent"
    FATAL = "fatal"


_ERRORS: dict[Kind, type[CallError]] = {
    Kind.TRANSIENT: TransientCallError,
    Kind.UNUSABLE: PermanentCallError,
    Kind.PERMANENT: PermanentCallError,
    Kind.FATAL: FatalCallError,
}


@dataclass(frozen=True)
class Answered:
    """The text of a finished answer, never blank; valid JSON where JSON was asked for."""

    text: str


@dataclass(frozen=True)
class Failed:
    """A failed attempt; `retry_after_s` is what the server asked for, `status` the HTTP status it stands for."""

    kind: Kind
    reason: Reason
    message: str
    status: int | None = None
    retry_after_s: float | None = None

    def error(self, attempts: int, elapsed_s: float) -> CallError:
        """The exception to raise after so many attempts and seconds."""
        after = ""
        if self.kind in (Kind.TRANSIENT, Kind.UNUSABLE):
            after = f"; gave up after {counted(attempts, 'attempt')} and {elapsed_s:.0f} s"
        return _ERRORS[self.kind](f"{self.message}{after}", self.reason)


Outcome = Answered | Failed


def classify(
    received: Received,
    error: Exception | None,
    *,
    wants_json: bool,
    redacted: Callable[[str], str],
    remedies: CallRemedies,
) -> Outcome:
    """What came of an attempt, from what has arrived and the exception that ended it, if one did.

    An exception after the complete answer changes nothing. `redacted` takes the key out of a text. An exception that
    no call should end with (a defect) is raised again.
    """
    if received.complete:
        return _of_response(received, wants_json, remedies)
    if error is not None:
        return _of_error(error, redacted, remedies)
    if received.started:
        return Failed(Kind.TRANSIENT, Reason.BROKEN_STREAM, "the Claude API ended a response before it was complete")
    return Failed(Kind.TRANSIENT, Reason.MALFORMED, "the answer is not one of the Claude API; check ANTHROPIC_BASE_URL")


def _of_response(received: Received, wants_json: bool, remedies: CallRemedies) -> Outcome:
    text = received.text
    match received.stop_reason:
        case "refusal":
            # The same text is refused again.
            return Failed(Kind.PERMANENT, Reason.REFUSED, "the model refused to answer for safety reasons")
        case "max_tokens":
            return Failed(Kind.PERMANENT, Reason.TRUNCATED, f"the answer was cut at max_tokens; {remedies.answer}")
        case "model_context_window_exceeded":
            return Failed(
                Kind.PERMANENT,
                Reason.CONTEXT_WINDOW,
                f"prompt and answer exceed the model's context window; {remedies.prompt}",
            )
        case "end_turn":
            pass
        case other:
            # No tool and no stop sequence is ever sent, so there is nothing to resume; the next answer may end well.
            return Failed(Kind.UNUSABLE, Reason.ODD_STOP_REASON, f"the model stopped with stop_reason {other!r}")
    if not received.blocks:
        return Failed(Kind.UNUSABLE, Reason.EMPTY, "the model answered without content")
    if text is None:
        kinds = ", ".join(sorted({kind for kind, _ in received.blocks.values()}))
        return Failed(Kind.UNUSABLE, Reason.NO_TEXT, f"the answer has no text block, only {kinds}")
    if not text.strip():
        return Failed(Kind.UNUSABLE, Reason.EMPTY, "the model answered with blank text")
    if wants_json and not _is_json(text):
        return Failed(Kind.UNUSABLE, Reason.NOT_JSON, "the model answered with text instead of the JSON asked for")
    return Answered(text)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _of_error(error: Exception, redacted: Callable[[str], str], remedies: CallRemedies) -> Failed:
    import anthropic
    import httpx2

    match error:
        case anthropic.APIStatusError():
            return _of_status(error, redacted, remedies)
        case TimeoutError() | anthropic.APITimeoutError() | httpx2.TimeoutException():
            return Failed(Kind.TRANSIENT, Reason.TIMEOUT, "the Claude API did not answer in time")
        case anthropic.APIConnectionError():
            cause = redacted(str(error.__cause__ or error))[:MESSAGE_CHARS]
            message = f"no connection to the Claude API: {cause}; check the network and ANTHROPIC_BASE_URL"
            return Failed(Kind.TRANSIENT, Reason.CONNECTION, message)
        case httpx2.TransportError():
            # The SDK wraps what happens before the response; what breaks its body comes through as it is.
            cause = redacted(str(error))[:MESSAGE_CHARS]
            return Failed(Kind.TRANSIENT, Reason.BROKEN_STREAM, f"the Claude API's response broke off: {cause}")
        case anthropic.APIResponseValidationError() | httpx2.DecodingError() | ValueError():
            cause = redacted(str(error))[:MESSAGE_CHARS]
            return Failed(Kind.TRANSIENT, Reason.MALFORMED, f"the Claude API's answer cannot be read: {cause}")
        case _:
            raise error


def _of_status(error: APIStatusError, redacted: Callable[[str], str], remedies: CallRemedies) -> Failed:
    # An `error` event inside a stream is a status error whose status is the 200 that the response began with.
    # Fields of an error's body may be anything: a proxy wrote it.
    status = error.status_code if error.status_code >= 300 else _STATUS_OF_TYPE.get(str(error.type), 500)
    message = str(error.api_message or error)
    wording = message.lower()
    # Without the request's id, so that equal refusals count as one reason.
    said = f"the Claude API answered {status}: {redacted(message)[:MESSAGE_CHARS]}"

    def failed(kind: Kind, reason: Reason, remedy: str = "") -> Failed:
        return Failed(kind, reason, said + remedy, status, retry_after_s(error.response.headers))

    if (
        status == 402
        or str(error.error_code) in _SPEND_LIMIT_CODES
        or (status == 400 and _says(wording, _SPEND_LIMIT_WORDING))
    ):
        remedy = "; raise the spend limit or add credit in the Claude Console, then run again"
        return failed(Kind.FATAL, Reason.SPEND_LIMIT, remedy)
    if error.error_code == "organization_on_hold":
        return failed(Kind.FATAL, Reason.AUTH, "; contact Anthropic's support")
    match status:
        case 401 | 403:
            return failed(Kind.FATAL, Reason.AUTH, f"; {_SET_KEY}")
        case 400 if _says(wording, _TOO_LONG_WORDING):
            return failed(Kind.PERMANENT, Reason.CONTEXT_WINDOW, f"; {remedies.prompt}")
        case 413:
            return failed(Kind.PERMANENT, Reason.TOO_LARGE, f"; {remedies.prompt}")
        case 404:
            return failed(Kind.PERMANENT, Reason.NOT_FOUND, "; check the model's name and ANTHROPIC_BASE_URL")
        case 408 | 504:
            return failed(Kind.TRANSIENT, Reason.TIMEOUT)
        case 409:
            return failed(Kind.TRANSIENT, Reason.CONFLICT)
        case 429:
            return failed(Kind.TRANSIENT, Reason.RATE_LIMIT, f"; {remedies.rate} if this goes on")
        case 529:
            return failed(Kind.TRANSIENT, Reason.OVERLOADED)
        case _ if status >= 500:
            return failed(Kind.TRANSIENT, Reason.SERVER)
        case _:
            return failed(Kind.PERMANENT, Reason.BAD_REQUEST)


def _says(wording: str, phrases: tuple[str, ...]) -> bool:
    return any(phrase in wording for phrase in phrases)


def no_key() -> FatalCallError:
    """For a missing key."""
    return FatalCallError(f"no key for the Claude API: {_SET_KEY}", Reason.NO_KEY)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds of `retry-after-ms` or `retry-after` (a number or an HTTP date); None without a usable one."""
    found: float | None = None
    with suppress(KeyError, ValueError, OverflowError):
        found = float(headers["retry-after-ms"]) / 1000
    if found is None:
        value = headers.get("retry-after", "")
        try:
            found = float(value)
        except ValueError:
            with suppress(ValueError, OverflowError):
                found = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
    return found if found is not None and not math.isnan(found) and found >= 0 else None
