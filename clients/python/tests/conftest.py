from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tenure_client import Client

from .cluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    cluster.leader()
    with Client(cluster.uri) as client:
        yield client


@pytest.fixture
def key() -> str:
    return f"test:{secrets.token_hex(4)}"
