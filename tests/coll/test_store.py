# SPDX-License-Identifier: Apache-2.0
"""The key-value store of harp.collectives, and its use of a job's environment variables."""

import hashlib
import hmac
import socket
import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from harp.collectives import Communicator, Job, TcpStore
from harp.collectives import store as store_module
from harp.collectives.environment import first_host

BUFFER_BYTES = 65536  # per socket; both together are smaller than a value


@pytest.fixture
def served() -> Iterator[TcpStore]:
    store = TcpStore("localhost", 0, serve=True, secret="s3cret", timeout_s=5)
    yield store
    store.close()


def client(served: TcpStore, secret: str = "s3cret") -> TcpStore:
    return TcpStore("localhost", served.port, secret=secret, timeout_s=5)


def test_values_are_seen_by_all(served: TcpStore) -> None:
    other = client(served)
    assert other.get("key") is None
    served.set("key", b"value")
    assert other.get("key") == b"value"
    other.set("key", b"x" * store_module.VALUE_BYTES_MAX)
    assert served.get("key") == b"x" * store_module.VALUE_BYTES_MAX
    other.close()
    other.close()
    with pytest.raises(ConnectionError, match="closed"):
        other.get("key")


def test_wait_ends_when_the_key_is_set(served: TcpStore) -> None:
    other = client(served)
    setter = threading.Timer(0.05, served.set, ("late", b""))
    setter.start()
    other.wait("late", 5)
    setter.join()
    other.wait("late", 5)
    other.close()


def test_wait_times_out_and_the_store_still_works(served: TcpStore) -> None:
    other = client(served)
    with pytest.raises(TimeoutError, match="never"):
        other.wait("never", 0.05)
    other.set("never", b"1")
    assert other.get("never") == b"1"
    other.close()


def test_another_secret_is_rejected(served: TcpStore) -> None:
    for secret in ("", "other"):
        with pytest.raises(PermissionError, match="HARP_COLL_SECRET"):
            client(served, secret)
    assert served.get("key") is None


def test_garbage_ends_its_own_connection_only(served: TcpStore) -> None:
    served.set("key", b"value")
    with socket.create_connection(("localhost", served.port), timeout=5) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100)
        while sock.recv(4096):
            pass
    assert served.get("key") == b"value"


def test_bounds(served: TcpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="at most"):
        served.set("k" * 257, b"")
    monkeypatch.setattr(store_module, "TOTAL_BYTES_MAX", 1000)
    with pytest.raises(OSError, match="full"):
        served.set("key", b"x" * 1000)
    served.set("key", b"x" * 100)


def test_a_client_that_reads_no_reply_gets_no_more(served: TcpStore) -> None:
    """The server stops reading its requests, and serves other clients."""
    served.set("key", b"x" * store_module.VALUE_BYTES_MAX)
    get = struct.pack("!BHI", 2, 3, 0) + b"key"
    with socket.socket() as sock:
        sock.settimeout(0.5)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        sock.connect(("127.0.0.1", served.port))
        nonce = sock.recv(4096)[len(store_module.GREETING) :]
        proof = hmac.new(b"s3cret", store_module.GREETING + nonce, hashlib.sha256).digest()
        sock.sendall(proof)
        with pytest.raises(TimeoutError):
            sock.sendall(get * (64 << 20 >> 3))
        assert served.get("key") is not None
    assert served.get("key") is not None


def test_a_client_that_does_not_authenticate_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "HELLO_S", 0.05)
    store = TcpStore("localhost", 0, serve=True, timeout_s=5)
    with socket.create_connection(("localhost", store.port), timeout=5) as sock:
        while sock.recv(4096):
            pass
    store.close()


def test_no_server_listens() -> None:
    with socket.create_server(("localhost", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionError, match="MASTER_ADDR"):
        TcpStore("localhost", port, timeout_s=0.2)


def test_another_program_listens() -> None:
    with socket.create_server(("localhost", 0)) as listener:

        def answer() -> None:
            sock, _ = listener.accept()
            sock.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian and more than a greeting")
            sock.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ConnectionError, match="not HARP's key-value store"):
            TcpStore("localhost", listener.getsockname()[1], timeout_s=5)
        thread.join()


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port}"):
            TcpStore("localhost", port, serve=True, timeout_s=1)


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "3"}


def mpi(name: str) -> dict[str, str]:
    """Variables of Open MPI or MVAPICH for rank 1 of two on this host."""
    values = {"RANK": "1", "SIZE": "2", "LOCAL_SIZE": "2"}
    return {f"{name}_COMM_WORLD_{key}": value for key, value in values.items()}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TORCHRUN, (3, 8, "10.0.0.1", 29500)),
        (TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"}, (3, 8, "10.0.0.1", 29501)),
        (TORCHRUN | {"HARP_COLL_PORT": "4000"}, (3, 8, "10.0.0.1", 4000)),
        (SLURM | {"SLURM_JOB_NODELIST": "n[07-09],x"}, (1, 4, "n07", 20015)),
        (SLURM | {"MASTER_ADDR": "a", "MASTER_PORT": "5000"}, (1, 4, "a", 5000)),
        (mpi("OMPI"), (1, 2, "127.0.0.1", 29411)),
        (mpi("MV2"), (1, 2, "127.0.0.1", 29411)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "MASTER_ADDR": "b"}, (0, 2, "b", 29411)),
        ({}, (0, 1, "127.0.0.1", 29411)),
    ],
)
def test_job(environment: dict[str, str], expected: tuple[int, int, str, int]) -> None:
    job = Job.from_env(environment)
    assert (job.rank, job.world, job.address, job.port) == expected


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (TORCHRUN | {"RANK": "8"}, "rank 8 is not in a world of 8 ranks"),
        (TORCHRUN | {"RANK": "x"}, "RANK='x' is not a number"),
        (TORCHRUN | {"MASTER_PORT": "70000"}, "port 70000"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "MASTER_ADDR is not set"),
    ],
)
def test_bad_job(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Job.from_env(environment)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a", "a"), ("a,b", "a"), ("node[07-09,12],x", "node07"), ("n[1]-ib,m", "n1-ib")],
)
def test_first_host(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_a_world_of_one_needs_no_variables() -> None:
    with Communicator.from_env({}) as comm:
        values = np.arange(5.0)
        assert comm.allreduce(values, "avg") is values
        assert comm.allgather(values).tolist() == [values.tolist()]
        assert comm.alltoall(values).tolist() == values.tolist()
        assert comm.iallreduce(values.copy()).wait(1).tolist() == values.tolist()
        comm.barrier()
    comm.close()
    with pytest.raises(ValueError, match="closed"):
        comm.barrier()
