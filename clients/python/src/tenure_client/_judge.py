"""One try, judged: what an HTTP answer (or its absence) says about the command. Pure.

A try ends in one of four ways: answered; over (an error that no other endpoint would change); surely without effect;
perhaps with effect.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass

from ._errors import ProtocolError, Refused, TenureError
from ._uri import Endpoint, parse_endpoint
from ._wire import Answer, Json, Repeat, Witness


class Why(enum.Enum):
    """Why a try surely had no effect."""

    #: The host refused the connection: nothing listens.
    REFUSED = "refused"
    #: No connection came about, or it broke before the command left.
    NO_WAY = "no way"
    #: A node is there, and did not serve.
    NOT_SERVED = "not served"


@dataclass(frozen=True)
class Answered:
    """It was answered."""

    answer: Answer
    #: The node closes the connection: it goes away.
    closing: bool = False


@dataclass(frozen=True)
class Over:
    """It ended in an error that no other endpoint would change."""

    error: TenureError


@dataclass(frozen=True)
class Without:
    """Surely without effect. `leader`: whom the node takes for the leader."""

    detail: str
    why: Why
    leader: Endpoint | None = None


@dataclass(frozen=True)
class InDoubt:
    """Perhaps with effect."""

    detail: str


Tried = Answered | Over | Without | InDoubt


@dataclass(frozen=True)
class Raw:
    """An answer as it came."""

    endpoint: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    #: The time before the request was sent.
    sent_ns: int
    repeat: Repeat
    #: The body is a bare JSON value, not `{"result": ...}`.
    bare: bool = False


def judge(raw: Raw) -> Tried:
    """What it says."""
    if 200 <= raw.status < 300:
        return _answer(raw)
    problem = _problem(raw.body)
    if problem is None:
        detail = f"HTTP status {raw.status} without a problem+json body"
        # A proxy's 5xx may stand for a request that reached a node.
        return InDoubt(detail) if raw.status >= 500 else Over(ProtocolError(raw.endpoint, detail))
    code, detail = problem["code"], problem["detail"]
    if code == "unavailable":
        return Without(detail, Why.NOT_SERVED, _leader(problem.get("leader")))
    # A fault of the node says nothing about how far the command came; of a read it does not matter.
    if code == "outcome_unknown" or (code == "internal" and raw.repeat is not Repeat.READ):
        return InDoubt(detail)
    return Over(refusal(problem))


def refusal(problem: Mapping[str, Json]) -> Refused:
    """A problem (or the `error` of a BATCH's item) as an exception."""

    def text(name: str) -> str | None:
        value = problem.get(name)
        return value if isinstance(value, str) else None

    def number(name: str) -> int | None:
        value = problem.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    code, detail = text("code") or "internal", text("detail") or ""
    return Refused(code, detail, text("field"), number("index"), number("status"), text("title"))


def unreadable(endpoint: str, repeat: Repeat, detail: str) -> Tried:
    """Something answered "done", and what was done cannot be read.

    Of a read that is the endpoint's fault, of a write the effect is in doubt.
    """
    return Over(ProtocolError(endpoint, detail)) if repeat is Repeat.READ else InDoubt(detail)


def _problem(body: bytes) -> dict[str, Json] | None:
    problem = _json(body)
    if not isinstance(problem, dict):
        return None
    readable = isinstance(problem.get("code"), str) and isinstance(problem.get("detail"), str)
    return problem if readable else None


def _json(body: bytes) -> Json:
    """The value, or None where it is no JSON (of hostile depth, too)."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _leader(text: Json) -> Endpoint | None:
    if not isinstance(text, str):
        return None
    try:
        return parse_endpoint(text)
    except TenureError:
        return None


def _answer(raw: Raw) -> Tried:
    value = _json(raw.body)
    witness = Witness.of(raw.headers)
    options = (option.strip().lower() for option in raw.headers.get("connection", "").split(","))
    closing = "close" in options
    if raw.bare and value is not None:
        return Answered(Answer(value, {}, witness, raw.endpoint, raw.sent_ns), closing)
    if not isinstance(value, dict) or "result" not in value:
        return unreadable(raw.endpoint, raw.repeat, "the answer is unreadable")
    extras = {name: extra for name, extra in value.items() if name != "result"}
    return Answered(Answer(value["result"], extras, witness, raw.endpoint, raw.sent_ns), closing)
