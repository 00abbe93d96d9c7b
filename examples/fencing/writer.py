"""A writer that works under a lease and passes its fence with every write.

    python3 writer.py --tenure http://HOST:PORT --resource http://HOST:PORT --name NAME TEXT...

Takes the lease `document`, waiting in line for it; writes each TEXT; gives the lease back. `--stop-before TEXT` stops the
process (SIGSTOP) between its last look at the clock and that write: where a garbage collection, a swapped-out page or a
live migration strikes. It cannot know that it slept.
"""

import argparse
import json
import os
import secrets
import signal
import time
import urllib.error
import urllib.request

KEY = "document"
# One in a hundred: how much faster than ours the store's clock may run (`rho` of /v1/status).
RHO = 0.01
MARGIN_S = 0.05


def call(tenure, operation, **args):
    """One OP. Repeating it by the same token is safe, so no outcome is left in doubt."""
    body = json.dumps({"key": KEY, "operation": operation, "args": args}).encode()
    request = urllib.request.Request(f"{tenure}/v1/OP", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


class Lease:
    """A lease that was taken, and until when this process may trust in it by its own clock."""

    def __init__(self, tenure, owner, ttl_ms):
        self.tenure, self.ttl_ms = tenure, ttl_ms
        # A fresh secret for each attempt to hold.
        self.token = secrets.token_hex(16)
        while True:
            grant = call(tenure, "ACQUIRE", owner=owner, token=self.token, ttl_ms=ttl_ms, wait_ms=30_000, create=True)
            # Whoever waited, or asks again, learns of a grant that may be old: a RENEW proves it, and dates it.
            if (grant["result"] or grant.get("yours")) and self.renew(grant["fence"]):
                break

    def renew(self, fence):
        sent = now()
        renewed = call(self.tenure, "RENEW", token=self.token, ttl_ms=self.ttl_ms, fence=fence)
        self.fence, self.until = fence, sent + renewed.get("ttl_ms", 0) / 1000 / (1 + RHO) - MARGIN_S
        return renewed["result"]

    def release(self):
        return call(self.tenure, "RELEASE", token=self.token, fence=self.fence)["result"]


def now():
    """A clock that runs while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def write(resource, text, fence):
    request = urllib.request.Request(f"{resource}/document", text.encode(), {"Fence": str(fence)}, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as refused:
        return f"refused: {refused.read().decode()}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tenure", required=True)
    parser.add_argument("--resource", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--ttl-ms", type=int, default=2500)
    parser.add_argument("--stop-before", default=None)
    parser.add_argument("--keep", action="store_true", help="do not give the lease back")
    parser.add_argument("texts", nargs="*")
    options = parser.parse_args()

    def say(what):
        print(f"{options.name}: {what}", flush=True)

    lease = Lease(options.tenure, options.name, options.ttl_ms)
    say(f"I hold the lease, fence {lease.fence}")
    for text in options.texts:
        if now() >= lease.until and not lease.renew(lease.fence):
            say("I have lost the lease")
            return
        if text == options.stop_before:
            os.kill(os.getpid(), signal.SIGSTOP)
        # By its own clock it was the holder a moment ago. That is all that any client can know.
        say(f"write {text!r} with fence {lease.fence}: {write(options.resource, text, lease.fence)}")
    if not options.keep:
        say("I give the lease back" if lease.release() else "I had lost the lease")


if __name__ == "__main__":
    main()
