"""Rules of ours for schemathesis: who may be told 5xx, how long an ACQUIRE may wait in this test, and that what is for
pools meets one."""

import os
import threading
import time

import schemathesis

# Milliseconds. A node that is asked for an answer sooner may rightly have none.
IMPATIENT_MS = 1000
WAIT_MS_MAX = 1500
# By which a node answers before the header's time is over (docs/api.md).
EARLIER_MS = 50
# The greatest that the document allows in the header.
PATIENCE_MS_MAX = 86_400_000
# Seconds. A beat that takes longer: the host stood still.
BEAT_S = 0.05
BEAT_S_MAX = 0.3
# Made by check.sh.
POOL = "example:pool"
OF_POOLS = {"identity", "avoid", "unix_ms", "id", "size", "all"}


class Host(threading.Thread):
    """Knows whether the host stood still: it woke this thread late, or its disk (the node's too) did not sync."""

    def __init__(self):
        super().__init__(daemon=True)
        self.beat_at = time.monotonic()
        self.stood_still_at = float("-inf")
        self.start()

    def run(self):
        with open("beat", "wb", buffering=0) as file:
            while True:
                time.sleep(BEAT_S)
                file.write(b"x")
                os.fsync(file)
                now = time.monotonic()
                if now - self.beat_at > BEAT_S_MAX:
                    self.stood_still_at = now
                self.beat_at = now

    def stood_still(self, for_s):
        """In the last so many seconds."""
        now = time.monotonic()
        return now - self.beat_at > BEAT_S_MAX or now - self.stood_still_at < for_s + BEAT_S_MAX


host = Host()


def patience_ms(headers):
    """What the request's header says, if it says a number."""
    for name, value in headers.items():
        text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
        if name.lower() == "tenure-timeout-ms" and text.isascii() and text.isdigit():
            return int(text)
    return None


def args_of(body):
    """An OP's arguments, if it has any."""
    args = body.get("args") if isinstance(body, dict) else None
    return args if isinstance(args, dict) else {}


def is_key(key):
    """A bad key has to stay one."""
    return isinstance(key, str) and 1 <= len(key) <= 256 and key.isprintable()


def to_the_pool(body):
    """Sends an OP that only a pool understands to the pool; every fourth, by its key, meets what it meets."""
    if not isinstance(body, dict) or not is_key(body.get("key")) or len(body["key"]) % 4 == 0:
        return
    if body.get("operation") == "HOLDERS" or OF_POOLS & args_of(body).keys():
        body["key"] = POOL


@schemathesis.hook
def before_call(context, case, kwargs):
    """Nobody frees a lease here: what waits is given an end, by the header that bounds every wait."""
    body = case.body if isinstance(case.body, dict) else {}
    to_the_pool(body)
    for item in body.get("commands") if isinstance(body.get("commands"), list) else []:
        to_the_pool(item)
    args = args_of(body)
    wait_ms = args.get("wait_ms")
    patience = patience_ms(case.headers or {})
    # A header that is too great has to stay so: it is refused.
    endless = patience is None or WAIT_MS_MAX < patience <= PATIENCE_MS_MAX
    if isinstance(wait_ms, (int, float)) and wait_ms > WAIT_MS_MAX and endless:
        headers = {name: value for name, value in (case.headers or {}).items() if name.lower() != "tenure-timeout-ms"}
        case.headers = {**headers, "Tenure-Timeout-Ms": str(WAIT_MS_MAX)}


@schemathesis.check
def only_the_impatient_see_5xx(ctx, response, case):
    """One node that nothing ails serves: 503 and 504 are for whoever gave it no time, or whose time the host took."""
    if response.status_code < 500:
        return
    patience = patience_ms(response.request.headers)
    impatient = patience is not None and patience < IMPATIENT_MS
    elapsed_ms = response.elapsed * 1000
    late = patience is not None and elapsed_ms >= patience - EARLIER_MS and host.stood_still(response.elapsed)
    told = f"{response.status_code} to a patient client (it gave {patience} ms, and was told after {elapsed_ms:.0f} ms)"
    assert (impatient or late) and response.status_code in (503, 504), told
