"""Shows what a fence is for: `tenure dev -- python3 examples/fencing/show.py`. Every line of it is checked in CI.

Nothing here waits by the clock: a stopped process is awaited as such, and B waits in line for A's lease to end.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import urllib.request

# A's lease is waited for; it must not end before A is stopped, however busy the host is. B gives its own back.
TTL_MS = {"A": 4500, "B": 30_000}

HERE = pathlib.Path(__file__).parent
TENURE = "http://" + os.environ["TENURE_URI"].removeprefix("tenure://").split(",")[0]


def start(script, *args):
    command = [sys.executable, str(HERE / script), *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def resource(guard, database, *more):
    """A resource server and its address, killed at the end: what it keeps must be on disk."""
    process = start("resource.py", "--guard", guard, "--database", str(database), "--tenure", TENURE, *more)
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def writer(name, address, *args):
    ttl_ms = str(TTL_MS[name])
    return start("writer.py", "--tenure", TENURE, "--resource", address, "--name", name, "--ttl-ms", ttl_ms, *args)


def await_stop(process):
    """Returns once the process is stopped, as the system tells it."""
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), "it ended instead"


def so_far(process, lines):
    """What a stopped process has said: so many lines."""
    for _ in range(lines):
        print(process.stdout.readline(), end="", flush=True)


def rest(process):
    """What a process still says until it ends."""
    process.send_signal(signal.SIGCONT)
    print(process.communicate()[0], end="", flush=True)
    assert process.returncode == 0


def document(address):
    with urllib.request.urlopen(f"{address}/document", timeout=10) as answer:
        print(f"   the document: {answer.read().decode()!r}", flush=True)


def old_holder_wakes(guard, folder):
    """A is stopped just before its second write; B gets the lease and writes; A wakes and writes."""
    with resource(guard, folder / guard) as (_, address):
        a = writer("A", address, "--stop-before", "A again", "A", "A again")
        await_stop(a)
        so_far(a, 2)
        print("   (A is stopped, believing that it holds; its lease ends; B has waited for it)", flush=True)
        rest(writer("B", address, "B"))
        print("   (A wakes)", flush=True)
        rest(a)
        document(address)


def the_resource_sleeps(guard, folder):
    """A's write is stopped inside the resource; B gets the lease, and writes to it by another server; the first wakes."""
    database = folder / f"{guard}-twice"
    with resource(guard, database, "--stop-before-write") as (sleeper, address):
        a = writer("A", address, "--keep", "A")
        await_stop(sleeper)
        so_far(a, 1)
        print("   (the resource is stopped with A's write in it; A's lease ends)", flush=True)
        with resource(guard, database) as (_, other):
            rest(writer("B", other, "B"))
            print("   (the resource wakes)", flush=True)
            sleeper.send_signal(signal.SIGCONT)
            rest(a)
            document(other)


def restart(folder):
    """The greatest fence survives a kill of the resource, and of everything that it knew."""
    with resource("highest", folder / "highest") as (_, address):
        request = urllib.request.Request(f"{address}/document", b"late", {"Fence": "1"}, method="PUT")
        try:
            urllib.request.urlopen(request, timeout=10)
        except urllib.error.HTTPError as refused:
            print(f"   a late write with fence 1: refused: {refused.read().decode()}")
        document(address)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        print("1. The resource remembers the greatest fence", flush=True)
        old_holder_wakes("highest", folder)
        print("2. The same resource after kill -9", flush=True)
        restart(folder)
        print("3. The resource asks CHECK", flush=True)
        old_holder_wakes("check", folder)
        print("4. The resource believes everybody: A's late write destroys B's", flush=True)
        old_holder_wakes("none", folder)
        print("5. CHECK, and the resource itself is stopped between check and write: B's is destroyed", flush=True)
        the_resource_sleeps("check", folder)
        print("6. The greatest fence, and the resource is stopped before its write: refused all the same", flush=True)
        the_resource_sleeps("highest", folder)


if __name__ == "__main__":
    main()
