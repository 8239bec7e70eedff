# SPDX-License-Identifier: Apache-2.0
"""The metrics endpoint: the content of a scrape, misbehaving clients, and unusable addresses."""

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from conftest_stats import Owner
from harpd_documents import Documents, documents, nic

from harp.daemon import exporter

DOCUMENTS = documents(nic("eth1", "free", verdicts={"rss_mismatch": 3}))


@pytest.fixture
def endpoint() -> Iterator[exporter.Exporter]:
    """On an unused port."""
    running = exporter.Exporter(port=0, source=lambda: DOCUMENTS)
    yield running
    running.close()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return str(answer.read().decode())


def test_a_scrape_has_instances_and_harpd(owner: Owner, endpoint: exporter.Exporter) -> None:
    assert endpoint.url.startswith("http://127.0.0.1:")
    text = get(endpoint.url)
    assert 'harp_tcp_conns{device="harp7"} ' in text
    assert 'queue="' not in text
    assert "process_resident_memory_bytes" in text
    each = get(f"{endpoint.url}?per=queue")
    assert 'harp_tcp_conns{device="harp7",queue="0",slot="0"} 3.0' in each
    assert 'harp_steering_packets_total{device="eth1",verdict="rss_mismatch"} 3.0' in text
    assert f'"{owner.process.pid}"' not in text
    assert "train rank" not in text


def test_an_unknown_breakdown_is_a_bad_request(endpoint: exporter.Exporter) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400"):
        get(f"{endpoint.url}?per=process")


def test_a_source_that_fails_costs_its_part_only(owner: Owner) -> None:
    def broken() -> Documents:
        raise RuntimeError("harpd is ill")

    running = exporter.Exporter(port=0, source=broken)
    try:
        text = get(running.url)
    finally:
        running.close()
    assert 'harp_tcp_conns{device="harp7"' in text
    assert "harpd_start_time_seconds" not in text


def test_unfinished_requests_block_no_scrape(
    endpoint: exporter.Exporter,
) -> None:
    slow = []
    for _ in range(2 * exporter.REQUESTS_MAX):
        slow.append(socket.create_connection(endpoint.address, timeout=20))
        slow[-1].sendall(b"GET /metrics HT")
    try:
        for _ in range(2):
            assert "harp_build_info" in get(endpoint.url)
        assert slow[0].recv(1) == b"", "the oldest has made room"
        slow[-1].sendall(b"TP/1.0\r\n\r\n")
        assert slow[-1].recv(12) == b"HTTP/1.0 200", "the newest may still ask"
    finally:
        for each in slow:
            each.close()


def test_unread_answers_block_no_scrape(
    endpoint: exporter.Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there are places ask, and read nothing: those with the answer in their hands for
    long go."""
    monkeypatch.setattr(exporter, "TAKE_S", 0.0)
    monkeypatch.setattr(exporter._Handler, "timeout", 1000.0)
    # An answer of many instances' length is more than the kernel takes.
    endpoint.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
    slow = []
    try:
        for _ in range(exporter.REQUESTS_MAX):
            slow.append(socket.socket())
            slow[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            slow[-1].settimeout(20)
            slow[-1].connect(endpoint.address)
            slow[-1].sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert slow[-1].recv(12) == b"HTTP/1.0 200"
        assert "harp_build_info" in get(endpoint.url)
    finally:
        for each in slow:
            each.close()


def test_nonsense_is_survived(endpoint: exporter.Exporter) -> None:
    for nonsense in (
        b"\0" * 5000,
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\n\r\n",
        b"\n",
    ):
        with socket.create_connection(endpoint.address, timeout=20) as talking:
            talking.sendall(nonsense)
            talking.shutdown(socket.SHUT_WR)
            while talking.recv(65536):
                pass
    assert "harp_build_info" in get(endpoint.url)


def test_a_busy_port_is_one_clear_line(endpoint: exporter.Exporter) -> None:
    port = endpoint.address[1]
    with pytest.raises(exporter.ExporterError) as raised:
        exporter.Exporter(port=port)
    assert str(raised.value) == (
        f"metrics endpoint 127.0.0.1 port {port}: another process has it; set another port in "
        "[metrics] of harp.toml"
    )
    assert "harp_build_info" in get(endpoint.url)


@pytest.mark.parametrize("address", ["192.0.2.1", "no-such-host.invalid", "2001:db8::1"])
def test_an_address_of_another_host_is_an_error(address: str) -> None:
    with pytest.raises(exporter.ExporterError, match="no address of this host"):
        exporter.Exporter(address, 0)


def test_the_endpoint_listens_on_ipv6() -> None:
    running = exporter.Exporter("::1", 0)
    try:
        assert running.url.startswith("http://[::1]:")
        assert "harp_build_info" in get(running.url)
    finally:
        running.close()
    with pytest.raises(urllib.error.URLError):
        get(running.url)
