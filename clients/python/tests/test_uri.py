from __future__ import annotations

import pytest

from tenure_client import Client, UriError
from tenure_client._uri import parse_uri


def test_several_nodes_default_port_alias_and_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, endpoints in [
        ("tenure://a:1,b", "a:1,b:13378"),
        ("amaquet://127.0.0.1:13378/", "127.0.0.1:13378"),
        ("TENURE://[::1],[fe80::1]:7", "[::1]:13378,[fe80::1]:7"),
    ]:
        assert ",".join(map(str, parse_uri(text))) == endpoints
    monkeypatch.setenv("TENURE_URI", "tenure://c:5")
    with Client() as client:
        assert repr(client) == "Client('tenure://c:5')"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("127.0.0.1:13378", "write tenure://host:13378"),
        ("http://a", "write tenure://host:13378"),
        ("tenures://a", "TLS comes later"),
        ("tenure://", "host is missing"),
        ("tenure://a,,b", "host is missing"),
        ("tenure://a:0", "1..=65535"),
        ("tenure://a:65536", "1..=65535"),
        ("tenure://a:", "1..=65535"),
        ("tenure://a:+1", "number"),
        ("tenure://a:\u0661", "number"),
        ("tenure://::1", "brackets"),
        ("tenure://[::1", "open"),
        ("tenure://[a]:1", "IPv6"),
        ("tenure://[::1]1", ":port"),
        ("tenure://u@a", "without path, user"),
        ("tenure://a/b", "without path, user"),
        ("tenure://a b", "without path, user"),
        ("tenure://a\n", "without path, user"),
        ("tenure://" + "a" * 254, "at most 253"),
        ("tenure://" + ",".join("a" * 17), "17 endpoints"),
    ],
)
def test_what_is_wrong_is_named(text: str, part: str) -> None:
    with pytest.raises(UriError) as caught:
        parse_uri(text)
    assert part in str(caught.value)
