"""A real throw-away cluster: `tenure dev --nodes 3`, whose nodes can be killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tenure_client import Client, Options, TenureError, Unavailable

#: For whatever a cluster has to do by itself, seconds: the host may be busy.
PATIENCE = 60.0


def binary() -> Path:
    """The server: `TENURE_BIN`, or that of this checkout."""
    given = os.environ.get("TENURE_BIN")
    if given:
        return Path(given)
    root = Path(__file__).resolve().parents[3]
    builds = [root / "target" / profile / "tenure" for profile in ("debug", "release")]
    return max((build for build in builds if build.exists()), key=lambda build: build.stat().st_mtime)


class Cluster:
    """The cluster; everything ends with it."""

    def __init__(self, nodes: int) -> None:
        # CMD says where everything is, and ends with our end of its stdin.
        script = 'printf "%s\\n" "$TENURE_URI" "$TENURE_DEV_DIR"; exec cat >/dev/null'
        self._dev = subprocess.Popen(
            [binary(), "dev", "--nodes", str(nodes), "--", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._dev.stdout is not None
        self.uri = self._dev.stdout.readline().strip()
        self.dir = Path(self._dev.stdout.readline().strip())
        assert self.uri.startswith("tenure://"), "tenure dev did not start"
        self.addresses = self.uri.removeprefix("tenure://").split(",")

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _tb: TracebackType | None) -> None:
        assert self._dev.stdin is not None
        assert self._dev.stdout is not None
        self._dev.stdin.close()
        self._dev.stdout.close()
        self._dev.wait(PATIENCE)

    def pid(self, node: int) -> int:
        """Of a node, from 1."""
        return int((self.dir / f"node-{node}" / "pid").read_text())

    def kill(self, node: int) -> None:
        """By SIGKILL."""
        os.kill(self.pid(node), signal.SIGKILL)

    def stop(self, node: int) -> None:
        """By SIGSTOP: its connections stay open, and silent."""
        os.kill(self.pid(node), signal.SIGSTOP)

    def go_on(self, node: int) -> None:
        """After a stop."""
        os.kill(self.pid(node), signal.SIGCONT)

    def start(self, node: int) -> None:
        """Again, after a kill; returns when it serves."""
        subprocess.run([self.dir / f"node-{node}" / "start"], check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE)

    def node(self, node: int) -> str:
        """The URI of one node alone."""
        return f"tenure://{self.addresses[node - 1]}"

    def leader(self) -> int:
        """The leader, from 1, once there is one and all nodes but killed ones are ready."""

        def led() -> int | None:
            for number in range(1, len(self.addresses) + 1):
                with Client(self.node(number), Options(call_timeout=2, refused_timeout=0.01)) as client:
                    try:
                        status = client.status()
                    except (Unavailable, TenureError):
                        continue
                if status["role"] == "leader" and status["ready"]:
                    return number
            return None

        return until(led)


def until(question: Callable[[], int | None]) -> int:
    """The first answer that is not None; what a cluster does by itself has no event to wait for."""
    deadline = time.monotonic() + PATIENCE
    while True:
        answer = question()
        if answer is not None:
            return answer
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.02)
