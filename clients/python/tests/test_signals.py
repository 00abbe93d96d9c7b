"""Signal handlers run in the main thread, between any two of its steps: what they may do must not wait for it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tenure_client import Client

from .cluster import Cluster
from .conftest import delete, make_pool
from .fake import Act, Fake, Seen, ok
from .test_process import run
from .test_slots import granted, renewed
from .test_watch import RESET, stream

#: A process that hangs says where, and ends.
BEGIN = """
import faulthandler, random, signal, sys
faulthandler.dump_traceback_later(300, exit=True)
from tenure_client import Client, SlotLost, commands
client = Client(sys.argv[1])


def machine_id():
    machine = client.machine_id(sys.argv[2], identity="pod-1", wall=None)
    machine.acquire()
    return machine


def interrupted(what, handler, at, steps="opcode", inside=""):
    # Runs `what` and, after so many of its steps, `handler` as a signal's would be; false: there are not so many.
    # `inside`: counts those only of files whose path has it.
    left = at

    def step(frame, event, _):
        nonlocal left
        if inside not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = steps == "opcode"
        if event == steps:
            left -= 1
            if left == 0:
                sys.settrace(None)
                handler()
        return step

    sys.settrace(step)
    try:
        what()
    finally:
        sys.settrace(None)
    return left <= 0
"""


def pool() -> Fake:
    """A node that grants, renews, and takes each grant back once."""
    over: set[str] = set()

    def act_for(seen: Seen) -> Act | None:
        if seen.operation != "RELEASE":
            return renewed() if seen.operation == "RENEW" else granted()
        again = seen.args["token"] in over
        over.add(seen.args["token"])
        return ok(result=False, reason="not_held") if again else ok(result=True)

    node = Fake(granted())
    node.act_for = act_for
    return node


#: What the main thread is at, and how many steps are left out between two that are interrupted: each costs a grant.
AT = {
    "id": ("machine.id", 1),
    "check": ("machine.check()", 1),
    "wait": ("machine.lost.wait(0.001)", 3),
    "renew": ("machine.renew()", 53),
    "another call": ("client.call(commands.get('k'))", 53),
}


@pytest.mark.parametrize(("what", "stride"), AT.values(), ids=AT.keys())
def test_a_handler_releases_whatever_it_interrupts(what: str, stride: int) -> None:
    script = f"""{BEGIN}
def what():
    try:
        {what}
    except SlotLost as lost:
        assert lost.reason == "released", lost


at, told = 1, []
while True:
    machine = machine_id()
    if not interrupted(what, lambda: told.append(machine.release()), at):
        break
    assert told[-1], at
    assert not machine.is_held()
    assert not machine.lost, "given back is not lost"
    at += {stride}
assert machine.release()
print(len(told))
"""
    with pool() as node:
        done = run(script, node, "ids")
        assert done.returncode == 0, done.stderr
        rounds = int(done.stdout)
        assert rounds > 15
        assert node.operations().count("RELEASE") == rounds + 1


def test_a_handler_looks_whatever_it_interrupts() -> None:
    script = f"""{BEGIN}
at, told = 1, []
machine = machine_id()


def look():
    told.append((machine.id, machine.is_held(), bool(machine.lost), machine.seconds_left > 0))


for what, stride in ((lambda: machine.id, 1), (lambda: machine.lost.wait(0.001), 1), (machine.renew, 29)):
    at = 1
    while interrupted(what, look, at):
        at += stride
assert set(told) == {{(3, True, False, True)}}, told
assert machine.release()
"""
    with pool() as node:
        done = run(script, node, "ids")
        assert done.returncode == 0, done.stderr


def test_a_release_inside_a_release_is_no_loss() -> None:
    script = f"""{BEGIN}
def block():
    with machine:
        entered.append(True)


at, stride = 1, 211
while True:
    entered = []
    machine = client.machine_id(sys.argv[2], identity="pod-1", wall=None)
    if not interrupted(block, lambda: entered and machine.release(), at):
        break
    at += stride
"""
    with pool() as node:
        done = run(script, node, "ids")
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("wait", [0, 60])
def test_an_acquire_that_is_interrupted_leaves_nothing_held(wait: int) -> None:
    """Ctrl-C, or a handler that exits: what nobody has hold of must not be renewed for ever."""
    script = f"""{BEGIN}
import gc, threading
from tenure_client import _guard


def interrupt():
    raise KeyboardInterrupt


at, stride = 1, 2
while True:
    slot = client.slot(sys.argv[2], wait={wait})
    try:
        # By lines: at some opcodes, as that of a return, Python takes no signal.
        if not interrupted(slot.acquire, interrupt, at, "line", "tenure_client"):
            break
    except KeyboardInterrupt:
        pass
    del slot
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("tenure-keep"):
            thread.join(10)
            assert not thread.is_alive(), at
    assert not _guard.held, at
    at += stride
assert slot.release()
print(at)
"""
    with Fake(granted(identity=None)) as node:
        node.act_for = lambda seen: {"RENEW": renewed(identity=None), "RELEASE": ok(result=True)}.get(seen.operation)
        done = run(script, node, "ids")
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) > 200, "lines"
        asked, given_back = (
            {seen.args["token"] for seen in node.seen if seen.operation == operation}
            for operation in ("ACQUIRE", "RELEASE")
        )
        assert asked <= given_back


@pytest.mark.parametrize(("what", "begun"), [("next(watch, None)", False), ("client.call(commands.get('k'))", True)])
def test_a_handler_closes_a_watch_whatever_it_interrupts(what: str, begun: bool) -> None:
    script = f"""{BEGIN}
at, stride = 1, 31
while True:
    watch = client.watch()
    if {begun}:
        next(watch)
    if not interrupted(lambda: {what}, watch.close, at):
        break
    assert list(watch) == []
    at += stride
watch.close()
"""
    with Fake(stream(RESET)) as node:
        node.act_for = lambda seen: ok(result=None) if isinstance(seen.body, dict) else None
        done = run(script, node, "k")
        assert done.returncode == 0, done.stderr


def test_a_handler_sets_a_flag_whatever_it_interrupts() -> None:
    script = f"""{BEGIN}
from tenure_client._flag import Flag
told, at, inside = [], 1, True
while inside:
    flag = Flag()
    inside = interrupted(lambda: told.append(flag.wait(0.001)), flag.set, at)
    assert flag.is_set() == flag.wait(0) == inside
    at += 1
assert at > 10
assert told[0] and not told[-1]
"""
    with pool() as node:
        done = run(script, node, "k")
        assert done.returncode == 0, done.stderr


HANDLERS = {
    # The recommended one: the block ends first, and gives back last.
    "exits": "sys.exit(0)",
    "releases": "machine.release()",
    "releases and exits": "(machine.release(), sys.exit(0))",
}


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS.keys())
@pytest.mark.parametrize("loop", ["machine.id", "machine.lost.wait() or machine.id", "machine.renew(), machine.id"])
def test_sigterm_ends_a_process_that_gives_its_id_back(
    cluster: Cluster, client: Client, key: str, handler: str, loop: str
) -> None:
    script = f"""{BEGIN}
machine = client.machine_id(sys.argv[2], identity=sys.argv[3])
signal.signal(signal.SIGTERM, lambda *_: {handler})
try:
    with machine:
        print("ready", flush=True)
        while True:
            {loop}
except SlotLost as lost:
    assert lost.reason == "released", lost
"""
    cluster.leader()
    make_pool(client, key, size=8)
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", script, cluster.uri, key, f"pod-{n}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(3)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()
            process.send_signal(signal.SIGTERM)
        for process in processes:
            # Longer than it takes until a process that hangs says so.
            _, errors = process.communicate(timeout=330)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert list(client.holders(key)) == []
    delete(client, key)


def test_many_signals_at_moments_that_nobody_chose() -> None:
    """As above, but by signals that the system sends."""
    script = f"""{BEGIN}
for _ in range(100):
    machine = machine_id()
    signal.signal(signal.SIGALRM, lambda *_: machine.release())
    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0005, 0.005))
    try:
        while True:
            machine.id
    except SlotLost as lost:
        assert lost.reason == "released", lost
"""
    with pool() as node:
        done = run(script, node, "ids")
        assert done.returncode == 0, done.stderr
        assert node.operations().count("RELEASE") == 100
