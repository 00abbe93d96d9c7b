"""Answers as Python values. What a node may not say is a ProtocolError."""

from __future__ import annotations

from ._errors import NotAll, OutcomeUnknown, ProtocolError, Refused
from ._judge import refusal
from ._wire import Answer, Holder, Json, Snapshot


def as_bool(answer: Answer) -> bool:
    """A boolean result."""
    if isinstance(answer.result, bool):
        return answer.result
    raise _unexpected(answer, "true or false")


def as_number(answer: Answer) -> int:
    """A whole number."""
    if isinstance(answer.result, int) and not isinstance(answer.result, bool):
        return answer.result
    raise _unexpected(answer, "a number")


def as_text(answer: Answer) -> str | None:
    """A text or null."""
    if answer.result is None or isinstance(answer.result, str):
        return answer.result
    raise _unexpected(answer, "a text or null")


def as_object(answer: Answer) -> dict[str, Json]:
    """An object."""
    if isinstance(answer.result, dict):
        return answer.result
    raise _unexpected(answer, "an object")


def as_snapshot(answer: Answer) -> Snapshot | None:
    """A snapshot or null."""
    if answer.result is None:
        return None
    try:
        return Snapshot.read(answer.result)
    except ValueError as error:
        raise ProtocolError(answer.endpoint, str(error)) from None


def as_page(answer: Answer) -> tuple[list[Snapshot], str | None]:
    """A page of a SCAN and the cursor of the next."""
    page = as_object(answer)
    keys, cursor = page.get("keys"), page.get("cursor")
    if not isinstance(keys, list) or not (cursor is None or isinstance(cursor, str)):
        raise _unexpected(answer, "a page of keys")
    try:
        return [Snapshot.read(key) for key in keys], cursor
    except ValueError as error:
        raise ProtocolError(answer.endpoint, str(error)) from None


def as_holders(answer: Answer) -> tuple[list[Holder], int | None]:
    """A page of HOLDERS and the cursor of the next."""
    page = as_object(answer)
    holders, cursor = page.get("holders"), page.get("cursor")
    if not isinstance(holders, list) or not (cursor is None or isinstance(cursor, int)):
        raise _unexpected(answer, "a page of holders")
    try:
        return [Holder.read(holder) for holder in holders], cursor
    except ValueError as error:
        raise ProtocolError(answer.endpoint, str(error)) from None


def as_batch(answer: Answer) -> list[Answer | Refused]:
    """Each item's answer or error, in order. Raises NotAll where it was all or nothing, and is nothing.

    A repetition that is told so says nothing of an earlier copy, whose releases (say) may be why: OutcomeUnknown.
    """
    if answer.result is False and answer.repeated:
        detail = f"an earlier try may have been done; the last: {answer.reason} (item {answer.index})"
        raise OutcomeUnknown(detail)
    if answer.result is False:
        raise NotAll(answer.index or 0, answer.reason or "not_held", answer.owner, answer.detail)
    if not isinstance(answer.result, list):
        raise _unexpected(answer, "an array")
    return [_item(answer, item) for item in answer.result]


def _item(answer: Answer, item: Json) -> Answer | Refused:
    if isinstance(item, dict) and isinstance(item.get("error"), dict):
        return refusal(item["error"])
    if not isinstance(item, dict) or "result" not in item:
        raise _unexpected(answer, "an array of answers")
    extras = {name: value for name, value in item.items() if name != "result"}
    return Answer(item["result"], extras, answer.witness, answer.endpoint, answer.sent_ns, answer.repeated)


def _unexpected(answer: Answer, what: str) -> ProtocolError:
    return ProtocolError(answer.endpoint, f"the result is not {what}")
