"""What docs/machine-ids.md shows is run: each block of commands against a node of its own, with a pool `ids`."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tenure_client import Client

from .cluster import PATIENCE, Cluster, binary
from .conftest import delete, make_pool

PAGE = (Path(__file__).parents[3] / "docs" / "machine-ids.md").read_text()
SHELL = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
#: Indented lines, each run of them.
TERMINAL = [block for block in re.findall(r"(?:^    .*\n)+", PAGE, re.MULTILINE) if block.startswith("    $ ")]

#: What the page's own programs do: they look at what they are given.
PROGRAMS = {
    "server": 'test -n "$TENURE_MACHINE_ID"',
    "worker": 'test -n "$TENURE_MACHINE_ID"',
    "train.sh": 'test "$TENURE_SLOT" = 0',
}


def run(script: str, directory: Path, begin: str = """tenure CREATE '{"key":"ids","type":"pool"}'""") -> str:
    """What it prints; it ends well, or the test fails."""
    (directory / "bin").mkdir()
    (directory / "bin" / "tenure").symlink_to(binary())
    for name, program in PROGRAMS.items():
        (directory / name).write_text(f"#!/bin/sh\n{program}\n")
        (directory / name).chmod(0o755)
    # Whoever runs this may have a host name that is refused.
    environment = {
        **os.environ,
        "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
        "TENURE_IDENTITY": "test",
        "XDG_STATE_HOME": str(directory),
    }
    script = script.replace("localhost:13378", '"${TENURE_URI#tenure://}"')
    script = f'set -eu\n{begin} >/dev/null\n{script}\nfor job in $(jobs -p); do wait "$job"; done\n'
    command = ["tenure", "dev", "--nodes", "1", "--", "bash", "-c", script]
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_there_is_something_to_run() -> None:
    assert len(SHELL) >= 5
    assert len(TERMINAL) >= 2


@pytest.mark.parametrize("block", SHELL, ids=lambda block: " ".join(block.split()[:3]))
def test_a_block_of_shell(block: str, tmp_path: Path) -> None:
    said = run(block, tmp_path)
    if "curl" in block:
        granted, renewed, released = said.replace("}{", "}\n{").split()
        assert '"id":0' in granted
        assert '"status":"renewed"' in renewed
        assert released.startswith('{"result":true')


@pytest.mark.parametrize("block", TERMINAL, ids=lambda block: " ".join(block.split()[1:4]))
def test_what_a_terminal_shows(block: str, tmp_path: Path) -> None:
    lines = [line.removeprefix("    ") for line in block.splitlines()]
    commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    shown = [line for line in lines if not line.startswith("$ ")]
    if shown:
        assert run("\n".join(commands), tmp_path, begin=":").splitlines() == shown
    else:
        # 1: it is not so, nobody holds it, say. A flag that is none would be 2.
        begin = """tenure CREATE '{"key":"ids","type":"pool"}' && tenure id acquire ids"""
        run("\n".join(f"{command.split(' #')[0]} || [ $? = 1 ]" for command in commands), tmp_path, begin)


def test_the_command_of_a_container(tmp_path: Path) -> None:
    (text,) = re.findall(r"`command: (\[.*?\])`", PAGE)
    words = [word.replace("/tmp/", f"{tmp_path}/") for word in json.loads(text)]
    run(shlex.join(words), tmp_path)


def test_the_series_are_there(tmp_path: Path) -> None:
    named = set(re.findall(r"\btenure_[a-z_]+", PAGE))
    assert len(named) >= 5
    said = run('curl -sf "http://localhost:13378/metrics"', tmp_path, begin=begin_with_all_series())
    missing = {name for name in named if f"\n{name}" not in said}
    assert not missing


def begin_with_all_series() -> str:
    """A family of series shows once it has one."""
    return """{ tenure CREATE '{"key":"ids","type":"pool"}'
        tenure CREATE '{"key":"k","type":"lease"}'
        tenure OP '{"key":"k","operation":"ACQUIRE","args":{"owner":"o","token":"t","ttl_ms":1}}'
        until [ "$(tenure OP '{"key":"k","operation":"HELD"}')" = false ]; do :; done
    }"""


def test_the_python_example(cluster: Cluster, client: Client) -> None:
    cluster.leader()
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    served: list[int] = []
    if client.exists("ids"):
        delete(client, "ids")
    make_pool(client, "ids")
    names: dict[str, Any] = {"client": client, "serve": lambda number: served.append(number())}
    exec(compile(example, "machine-ids.md", "exec"), names)
    delete(client, "ids")
    assert served == [0]
