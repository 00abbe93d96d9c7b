"""`tenure://host:port,host:port`: where the nodes are.

`amaquet://` is an alias. `tenures://` is reserved for TLS and refused until it exists: a connection that looks
encrypted and is not would be worse than none.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass

from ._errors import UriError

#: The default client port.
PORT = 13_378
#: Most endpoints in one URI.
ENDPOINTS_MAX = 16
HOST_BYTES_MAX = 253

_LEGAL_HOST = re.compile(r"[A-Za-z0-9._:-]+\Z")


@dataclass(frozen=True)
class Endpoint:
    """Where one node listens. `host` is a name or an address, IPv6 without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_uri(text: str) -> tuple[Endpoint, ...]:
    """The endpoints of a URI, in the order given: 1..=16. Raises UriError, which names the rule."""
    scheme, separator, rest = text.partition("://")
    if scheme.lower() == "tenures" and separator:
        raise UriError("tenures:// (TLS) is not supported yet, TLS comes later: use tenure:// on a network you trust")
    if not separator or scheme.lower() not in ("tenure", "amaquet"):
        raise UriError(
            f"{text!r} is no tenure URI: write tenure://host:13378, or tenure://a:13378,b:13378 for several nodes"
        )
    endpoints = tuple(parse_endpoint(part) for part in rest.removesuffix("/").split(","))
    if len(endpoints) > ENDPOINTS_MAX:
        raise UriError(f"{len(endpoints)} endpoints: at most {ENDPOINTS_MAX}")
    return endpoints


def parse_endpoint(text: str) -> Endpoint:
    """As one stands in a URI: `host`, `host:port`, `[::1]:port`. Raises UriError."""

    def wrong(rule: str) -> UriError:
        return UriError(f"{text!r} is no endpoint: {rule}")

    host, port = _split(text, wrong)
    if not host:
        raise wrong("the host is missing")
    if len(host) > HOST_BYTES_MAX:
        raise wrong("a host has at most 253 bytes")
    if not _LEGAL_HOST.match(host):
        raise wrong("a host is a name or an address, without path, user or spaces")
    if port is None:
        return Endpoint(host, PORT)
    if not re.fullmatch("[0-9]+", port):
        raise wrong("a port is a number, 1..=65535")
    if len(port) > 5 or not 1 <= int(port) <= 65_535:
        raise wrong("a port is 1..=65535")
    return Endpoint(host, int(port))


def _split(text: str, wrong: Callable[[str], UriError]) -> tuple[str, str | None]:
    if not text.startswith("["):
        if text.count(":") > 1:
            raise wrong("an IPv6 address needs brackets: [::1]:13378")
        host, colon, port = text.partition(":")
        return host, port if colon else None
    host, bracket, rest = text[1:].partition("]")
    if not bracket:
        raise wrong("the bracket of an IPv6 address is open")
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        raise wrong("between the brackets stands no IPv6 address") from None
    if rest and not rest.startswith(":"):
        raise wrong("after the bracket comes :port")
    return host, rest[1:] if rest else None
