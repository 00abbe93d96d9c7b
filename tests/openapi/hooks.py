"""Rules of ours for schemathesis: who may be told 5xx, and how long an ACQUIRE may wait in this test."""

import schemathesis

# Milliseconds. A node that is asked for an answer sooner may rightly have none.
IMPATIENT_MS = 1000
WAIT_MS_MAX = 1500


def patience_ms(headers):
    """What the request's header says, if it says a number."""
    for name, value in headers.items():
        text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
        if name.lower() == "tenure-timeout-ms" and text.isascii() and text.isdigit():
            return int(text)
    return None


@schemathesis.hook
def before_call(context, case, kwargs):
    """Nobody frees a lease here: what waits is given an end, by the header that bounds every wait."""
    body = case.body if isinstance(case.body, dict) else {}
    args = body.get("args") if isinstance(body.get("args"), dict) else {}
    wait_ms = args.get("wait_ms")
    if isinstance(wait_ms, (int, float)) and wait_ms > WAIT_MS_MAX and patience_ms(case.headers or {}) is None:
        case.headers = {**(case.headers or {}), "Tenure-Timeout-Ms": str(WAIT_MS_MAX)}


@schemathesis.check
def only_the_impatient_see_5xx(ctx, response, case):
    """One node that nothing ails serves: 503 and 504 are for whoever gave it no time."""
    if response.status_code < 500:
        return
    patience = patience_ms(response.request.headers)
    impatient = patience is not None and patience < IMPATIENT_MS
    assert impatient and response.status_code in (503, 504), f"{response.status_code} to a patient client (it gave {patience} ms)"
