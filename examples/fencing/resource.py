"""A resource that guards itself: a small HTTP server which keeps one document and refuses writes with a stale fence.

    python3 resource.py --database FILE --guard highest|check|none [--key KEY] [--tenure http://HOST:PORT]

    PUT /document   header Fence: N, the new text as body    200, or 409 with the reason
    GET /document                                            the text

`highest` keeps the greatest fence it has seen in the same transaction as the document: a write with a smaller one is
refused, for ever, whatever happens in between. `check` asks tenure whether the fence is the live grant's, and then writes:
nothing is kept, and a write that is held up between the two still lands. `none` believes everybody.
"""

import argparse
import json
import os
import signal
import sqlite3
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer


class Document:
    """The document and the greatest fence that ever wrote it, on disk together."""

    def __init__(self, path):
        self.database = sqlite3.connect(path, isolation_level=None)
        self.database.execute("PRAGMA synchronous = FULL")
        self.database.execute("CREATE TABLE IF NOT EXISTS document (one INTEGER PRIMARY KEY, fence INTEGER, text TEXT)")
        self.database.execute("INSERT OR IGNORE INTO document VALUES (1, 0, '')")

    def text(self):
        return self.database.execute("SELECT text FROM document").fetchone()[0]

    def write(self, text):
        self.database.execute("UPDATE document SET text = ?", (text,))

    def write_fenced(self, text, fence):
        """Writes unless a greater fence was here before; one statement, so nothing comes in between."""
        changed = self.database.execute(
            "UPDATE document SET text = ?, fence = ? WHERE fence <= ?", (text, fence, fence)
        ).rowcount
        return None if changed else f"a greater fence than {fence} has written"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(200, self.server.document.text())

    def do_PUT(self):
        text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        try:
            fence = int(self.headers["Fence"])
        except (TypeError, ValueError):
            return self.answer(400, "the header Fence must be the number of your grant")
        refused = self.server.guard(text, fence)
        self.answer(409 if refused else 200, refused or "written")

    def answer(self, status, text):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def is_live(tenure, key, fence):
    """OP CHECK: is this the fence of the live grant? False if nobody answers: a guard that cannot ask refuses."""
    body = json.dumps({"key": key, "operation": "CHECK", "args": {"fence": fence}}).encode()
    request = urllib.request.Request(f"{tenure}/v1/OP", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)["result"] is True
    except (urllib.error.URLError, OSError):
        return False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True)
    parser.add_argument("--guard", choices=["highest", "check", "none"], required=True)
    parser.add_argument("--tenure", help="for `check`")
    parser.add_argument("--key", default="document", help="for `check`: the lease that guards the document")
    parser.add_argument("--stop-before-write", action="store_true", help="for the show: SIGSTOP itself there, once")
    options = parser.parse_args()
    document = Document(options.database)
    pauses = [True] if options.stop_before_write else []

    def none(text, _):
        document.write(text)

    def check(text, fence):
        if not is_live(options.tenure, options.key, fence):
            return f"{fence} is not the fence of a live grant"
        if pauses:
            pauses.pop()
            os.kill(os.getpid(), signal.SIGSTOP)
        document.write(text)

    def highest(text, fence):
        if pauses:
            pauses.pop()
            os.kill(os.getpid(), signal.SIGSTOP)
        return document.write_fenced(text, fence)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.document = document
    server.guard = {"none": none, "check": check, "highest": highest}[options.guard]
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
