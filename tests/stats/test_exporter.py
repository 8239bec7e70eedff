# SPDX-License-Identifier: Apache-2.0
"""The metrics endpoint: the content of a scrape, misbehaving clients, and unusable addresses."""

import contextlib
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator

import pytest
from conftest_stats import Documents, Owner, documents, nic, scrape, serving

from harp.daemon import metrics
from harp.errors import HarpError
from harp.stats import exporter

DOCUMENTS = documents(nic("eth1", "free", verdicts={"rss_mismatch": 3}))


@pytest.fixture
def endpoint() -> Iterator[str]:
    with serving(lambda: DOCUMENTS) as url:
        yield url


def address_of(url: str) -> tuple[str, int]:
    parts = urllib.parse.urlsplit(url)
    return parts.hostname, parts.port


def test_a_scrape_has_instances_and_harpd(owner: Owner, endpoint: str) -> None:
    text = scrape(endpoint)
    assert 'harp_tcp_conns{device="harp7"} ' in text
    assert 'queue="' not in text
    assert "process_resident_memory_bytes" in text
    per_queue = scrape(f"{endpoint}?per=queue")
    assert 'harp_tcp_conns{device="harp7",queue="0",slot="0"} 3.0' in per_queue
    assert 'harp_steering_packets_total{device="eth1",verdict="rss_mismatch"} 3.0' in text
    assert f'"{owner.process.pid}"' not in text
    assert "train rank" not in text


def test_an_unknown_breakdown_is_a_bad_request(endpoint: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400"):
        scrape(f"{endpoint}?per=process")


@pytest.mark.parametrize("version", ["\xff", "1.x"])
def test_an_unknown_version_gets_plain_text(
    endpoint: str, version: str, capfd: pytest.CaptureFixture[str]
) -> None:
    accept = {"Accept": f"application/openmetrics-text;version={version}"}
    assert "harp_build_info" in scrape(urllib.request.Request(endpoint, headers=accept))
    assert capfd.readouterr().err == ""


def test_without_harpd_only_its_metrics_are_missing(owner: Owner) -> None:
    with serving(lambda: None) as url:
        text = scrape(url)
    assert 'harp_tcp_conns{device="harp7"' in text
    assert "harpd_start_time_seconds" not in text


def test_unfinished_requests_block_no_scrape(endpoint: str) -> None:
    with contextlib.ExitStack() as stack:
        clients = []
        for i in range(2 * exporter.CLIENTS_MAX):
            clients.append(
                stack.enter_context(socket.create_connection(address_of(endpoint), timeout=20))
            )
            clients[-1].sendall(b"GET /metrics HT")
            if i >= exporter.CLIENTS_MAX:
                assert clients[i - exporter.CLIENTS_MAX].recv(1) == b"", (
                    "the oldest client is closed"
                )
        for _ in range(2):
            assert "harp_build_info" in scrape(endpoint)
        clients[-1].sendall(b"TP/1.0\r\n\r\n")
        assert clients[-1].recv(12) == b"HTTP/1.0 200", "the newest client is served"


def handlers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]


def test_threads_that_wait_for_statistics_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits does not end when its client is closed."""
    monkeypatch.setattr(exporter, "AGE_S", 1000.0)
    answered = threading.Event()
    before = set(handlers())

    def source() -> Documents:
        answered.wait()
        return DOCUMENTS

    with contextlib.ExitStack() as stack:
        url = stack.enter_context(serving(source))
        stack.callback(answered.set)
        for _ in range(exporter.THREADS_MAX + 1):
            client = stack.enter_context(socket.create_connection(address_of(url), timeout=20))
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b"", "the last client is refused"
        waiting = set(handlers()) - before
        assert len(waiting) == exporter.THREADS_MAX
        answered.set()
        for thread in waiting:
            thread.join()
        assert "harp_build_info" in scrape(url)


def test_invalid_requests_do_no_harm(endpoint: str) -> None:
    for request in (
        b"\0" * 5000,
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\n\r\n",
        b"\n",
    ):
        with socket.create_connection(address_of(endpoint), timeout=20) as client:
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass
    assert "harp_build_info" in scrape(endpoint)


def test_a_busy_port_is_an_error(endpoint: str) -> None:
    address, port = address_of(endpoint)
    with pytest.raises(HarpError) as failure:
        metrics.listen(address, port)
    assert str(failure.value) == (
        f"metrics endpoint 127.0.0.1 port {port}: another process uses it; set another port in "
        "[metrics] of harp.toml"
    )


@pytest.mark.parametrize("address", ["192.0.2.1", "no-such-host.invalid", "2001:db8::1"])
def test_an_address_of_another_host_is_an_error(address: str) -> None:
    with pytest.raises(HarpError, match="this host does not have the address"):
        metrics.listen(address, 0)


def test_the_endpoint_listens_on_ipv6() -> None:
    with serving(lambda: DOCUMENTS, "::1") as url:
        assert url.startswith("http://[::1]:")
        assert "harp_build_info" in scrape(url)
