"""The examples of the README are run, in order, as one program; and its tables are held against the package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import tenure_client
from tenure_client import Client

from .cluster import Cluster

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_examples_run(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TENURE_URI", cluster.uri)
    cluster.leader()
    names: dict[str, Any] = {"__name__": "readme"}
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    try:
        for example in examples:
            exec(compile(example, "README.md", "exec"), names)
    finally:
        client = names.get("client")
        if isinstance(client, Client):
            client.close()
    said = capsys.readouterr().out
    for part in (
        "held, fence",
        "our turn, fence",
        "as it is: ['hourly-report']",
        "['disk-1', 'disk-2']",
        "id 0 fence",
        "slot 0",
    ):
        assert part in said
    assert "another host had it" not in said


def test_its_names_are_there() -> None:
    exceptions = set(re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", README, re.MULTILINE))
    named = {name for row in exceptions for name in re.findall(r"`(\w+)`", row)}
    public = {
        name
        for name, value in vars(tenure_client).items()
        if isinstance(value, type) and issubclass(value, tenure_client.TenureError)
    }
    assert named == public - {"TenureError", "UriError"}
    commands = re.search(r"milliseconds: (.*?)\.\n", README)
    assert commands is not None
    for name in re.findall(r"`(\w+)`", commands[1]):
        assert callable(getattr(Client, name))
        assert callable(getattr(tenure_client.AsyncClient, name))


def test_everything_public_is_documented() -> None:
    for name in tenure_client.__all__:
        value = getattr(tenure_client, name)
        if isinstance(value, type):
            assert value.__doc__, name
            undocumented = [
                member
                for member, function in vars(value).items()
                if not member.startswith("_") and callable(function) and not function.__doc__
            ]
            assert not undocumented, f"{name}: {undocumented}"
