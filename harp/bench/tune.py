# SPDX-License-Identifier: Apache-2.0
"""Measures the paths between this host and a peer, and decides which path carries which messages.

Theory of operation
-------------------
One host waits (`serve`), the other measures (`measure`). They connect by TCP and prove to each
other that they know a token, which the waiting host printed: HMAC-SHA256 over both nonces. Then the
measuring host names one run at a time (a traffic shape, a path, an address for rank 0), and each
host starts one harp-bench, as rank 0 and rank 1. Paths alternate within a round, since the
machine's speed and the network's load change within minutes.

Messages are JSON objects, one on each line of at most LINE_BYTES_MAX. A waiting host runs only
harp-bench, with shapes and sizes of this file, among which the peer chooses.
"""

import hashlib
import hmac
import ipaddress
import json
import secrets
import socket
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pyroute2 import IPRoute

from harp import _paths, files
from harp.bench.runner import KIB, MIB, BenchOptions, Say, Shape, time_us
from harp.closing import Closing
from harp.config import profile
from harp.errors import Exit, HarpError
from harp.lab.team import Team, job_environment
from harp.plugin_log import path_in_use
from harp.words import endpoint

PORT = 7900
LINE_BYTES_MAX = 1 << 20
HARP, KERNEL = "xdp", "kernel"  # HARP_PATH of the two paths
PATHS = (HARP, KERNEL)
# Messages use HARP lanes only if these are faster by this factor: a comm with both kinds of lanes
# loses part of the gain, and kernel TCP leaves the NIC's queues to other processes.
MARGIN = 1.1
MODE_WORDS = {
    "generic copy": "generic-copy",
    "native copy": "native-copy",
    "native zero-copy": "zero-copy",
    "zero-copy": "zero-copy",
}
_PROOF_TIMEOUT_S = 5.0
_RUN_TIMEOUT_S = 60.0
_BYTES_A_RUN = 48 * MIB
_RUNS = (4, 2000)  # at least, at most


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            "allreduce",
            "allreduce",
            (16, 2 * KIB, 8 * KIB, 32 * KIB, 128 * KIB, 512 * KIB, 2 * MIB, 8 * MIB),
        ),
        Shape("stream", "bw", (16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB), channels=4),
    )
}

# For [tuner]: rates of 1 to 8 parallel streams.
TUNER_SHAPES = {
    shape.name: shape
    for shape in (Shape(f"streams{n}", "bw", (MIB,), channels=n) for n in (1, 2, 8))
}
ALL_SHAPES = SHAPES | TUNER_SHAPES


def messages(shape: Shape) -> int:
    """Return the messages of an operation: a ring all-reduce of two ranks sends two halves."""
    return 2 if shape.mode == "allreduce" else 1


Times = dict[str, dict[int, list[float]]]  # us, by path and message size, one for each round


# ---- Decisions: functions of the measured times only ----
def speed_of_harp(times: Times, size: int) -> float:
    """Return the speed of HARP lanes relative to kernel lanes: the median of the rounds' ratios."""
    ratios = np.array(times[KERNEL][size]) / np.array(times[HARP][size])
    return float(np.median(ratios))


def harp_up_to(measured: Mapping[str, Times]) -> str:
    """Return the largest size class of messages (profile.UP_TO) for HARP lanes.

    HARP lanes are faster by MARGIN for all measured sizes of this class and of smaller ones.
    """
    best = "none"
    for name, limit in profile.UP_TO.items():
        speeds = [
            speed_of_harp(times, size)
            for times in measured.values()
            for size in times[HARP]
            if size <= limit
        ]
        if speeds and min(speeds) < MARGIN:
            break
        best = name
    return best


def rows(measured: Mapping[str, Times]) -> list[dict[str, Any]]:
    """Return a row for each shape and message size: medians in us, and the speed of HARP lanes."""
    return [
        {
            "shape": name,
            "message_bytes": size,
            "harp_us": round(float(np.median(times[HARP][size])), 2),
            "kernel_us": round(float(np.median(times[KERNEL][size])), 2),
            "speed_of_harp": round(speed_of_harp(times, size), 3),
        }
        for name, times in measured.items()
        for size in sorted(times[HARP])
    ]


def nic_mode(path_line: str) -> str:
    """Return the mode of a profile's [[nic]], from the plugin's line about its path."""
    for words, mode in MODE_WORDS.items():
        if words in path_line:
            return mode
    raise HarpError(f"the plugin's log does not name the NIC's mode: {path_line!r}")


def _best_us(times: Times, size: int, limit: str) -> float:
    """Return the median over the lanes that carry messages of this size."""
    return float(np.median(times[HARP if size <= profile.UP_TO[limit] else KERNEL][size]))


def tuner_times(measured: Mapping[str, Times], limit: str) -> dict[str, Any]:
    """Return [tuner] of a profile: latency of a small message; MB/s by size and by streams."""

    def rate(name: str, size: int) -> int:
        return max(1, round(size / _best_us(measured[name], size, limit)))

    ring = measured["allreduce"]
    smallest = min(ring[HARP])
    streams = {1: "streams1", 2: "streams2", 4: "stream", 8: "streams8"}
    return {
        # A ring of two ranks sends two messages, one after the other.
        "latency_ns": max(1, round(_best_us(ring, smallest, limit) * 1e3 / 2)),
        "rates": " ".join(
            f"{size}:{rate('stream', size)}" for size in sorted(measured["stream"][HARP])
        ),
        "channels": " ".join(f"{n}:{rate(name, MIB)}" for n, name in streams.items()),
    }


def _proof(token: str, role: str, nonces: Sequence[str]) -> str:
    text = "\n".join(("harp tune", role, *nonces))
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()


class Link(Closing):
    """JSON lines over a TCP connection. HarpError names the peer."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.sock, self.peer = sock, peer
        self._lines = sock.makefile("rb")

    def send(self, message: Mapping[str, Any]) -> None:
        try:
            self.sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise HarpError(f"{self.peer}: {error.strerror or error}") from error

    def receive(self) -> dict[str, Any]:
        try:
            line = self._lines.readline(LINE_BYTES_MAX)
        except TimeoutError:
            raise HarpError(f"{self.peer}: no answer in time") from None
        except OSError as error:
            raise HarpError(f"{self.peer}: {error.strerror}") from error
        if not line:
            raise HarpError(f"{self.peer}: closed the connection")
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not line.endswith(b"\n") or not isinstance(message, dict):
            raise HarpError(f"{self.peer}: does not speak harpctl tune's protocol")
        return message

    def authenticate(self, token: str, *, waits: bool) -> None:
        """Prove to each other that both know the token, the measuring host first."""
        own = secrets.token_hex(16)
        self.send({"harp_tune": 1, "nonce": own})
        greeting = self.receive()
        if greeting.get("harp_tune") != 1:
            raise HarpError(f"{self.peer}: another version of harpctl tune; install the same HARP")
        other = str(greeting.get("nonce"))
        nonces = (own, other) if waits else (other, own)
        proofs = {role: _proof(token, role, nonces) for role in ("waits", "measures")}
        if not waits:
            self.send({"proof": proofs["measures"]})
        answer = str(self.receive().get("proof"))
        if not hmac.compare_digest(answer, proofs["measures" if waits else "waits"]):
            raise HarpError(
                f"{self.peer}: wrong token; give the one that `harpctl tune` printed there",
                Exit.REFUSED,
            )
        if waits:
            self.send({"proof": proofs["waits"]})

    def close(self) -> None:
        self._lines.close()
        self.sock.close()


@contextmanager
def running_rank(rank: int, root: str, shape: Shape, path: str, ifname: str) -> Iterator[Team]:
    """Run harp-bench as this rank of two. root: rank 0's address and port."""
    options = BenchOptions(
        shape.mode,
        path=path,
        sizes=shape.argument(_BYTES_A_RUN * messages(shape), _RUNS),
        channels=shape.channels,
        datacheck=False,
        timeout_s=30,
    )
    environment = job_environment(
        {"HARP_PATH": path, "NCCL_DEBUG": "INFO"},
        foreign=("NCCL_", "HARP_"),
        kept=("HARP_SOCKET", "HARP_DAEMON"),
    )
    command: list[str | Path] = [_paths.find("harp-bench"), *options.arguments()]
    command += ["--rank", str(rank), "--ranks", "2", "--root", root, "--ifname", f"={ifname}"]
    with Team("harp-bench") as team:
        team.start(None, command, env=environment)
        yield team


def _free_port(address: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_STREAM)) as sock:
        sock.bind((address, 0))
        port: int = sock.getsockname()[1]
        return port


def _run(link: Link, shape: Shape, path: str, ifname: str) -> dict[str, Any]:
    """Execute one run as rank 0; return its report."""
    address = str(link.sock.getsockname()[0])
    port = _free_port(address)
    with running_rank(0, endpoint(address, port), shape, path, ifname) as own:
        link.send({"run": {"shape": shape.name, "path": path, "port": port}})
        failed = str(link.receive().get("failed") or "")[:500]
        # Only the rank that failed first knows the cause.
        if failed and own.processes[0].poll() in (None, 0):
            raise HarpError(f"{link.peer}: path {path}: {failed}")
        try:
            (printed,) = own.finish(_RUN_TIMEOUT_S)
        except HarpError as error:
            raise HarpError(f"path {path}: {error}") from None
    report: dict[str, Any] = json.loads(printed)
    return report


def measure(
    link: Link,
    ifname: str,
    rounds: int,
    advance: Callable[[str], None],
    shapes: Mapping[str, Shape] = SHAPES,
) -> tuple[dict[str, Times], str]:
    """Return the times of every shape over both paths, and the plugin's line about its AF_XDP path.

    advance is called before each of `steps(rounds, shapes)` runs, with the name of the run.
    """
    path_line = ""
    measured: dict[str, Times] = {
        name: {path: {size // messages(shape): [] for size in shape.sizes} for path in PATHS}
        for name, shape in shapes.items()
    }
    for index in range(rounds):
        for name, shape in shapes.items():
            for path in PATHS if index % 2 == 0 else reversed(PATHS):
                advance(f"{name} over {path}")
                report = _run(link, shape, path, ifname)
                if path == HARP:
                    path_line = path_in_use([str(entry["text"]) for entry in report["log"]])
                for row in report["results"]:
                    size = int(row["size_bytes"]) // messages(shape)
                    measured[name][path][size].append(time_us(shape.mode, row))
    return measured, path_line


def steps(rounds: int, shapes: Mapping[str, Shape] = SHAPES) -> int:
    return rounds * len(shapes) * len(PATHS)


def connect(host: str, port: int, token: str) -> Link:
    """Connect to the waiting host. HarpError has the reason of a failure."""
    peer = endpoint(host, port)
    try:
        sock = socket.create_connection((host, port), timeout=_PROOF_TIMEOUT_S)
    except UnicodeError:
        raise HarpError(f"{host} is not a host name", Exit.USAGE) from None
    except OSError as error:
        raise HarpError(
            f"{peer}: {error.strerror or error}; run `harpctl tune` there first", Exit.MISSING
        ) from error
    link = Link(sock, peer)
    try:
        link.authenticate(token, waits=False)
    except BaseException:
        link.close()
        raise
    sock.settimeout(2 * _RUN_TIMEOUT_S)
    return link


def interface_of(address: str) -> tuple[str, str]:
    """Return the interface of this host with this address, and the prefix of its link."""
    address = address.partition("%")[0]
    with IPRoute() as ipr:
        for entry in ipr.get_addr(address=address):
            (link,) = ipr.get_links(entry["index"])
            network = ipaddress.ip_network(f"{address}/{entry['prefixlen']}", False)
            return str(link.get_attr("IFLA_IFNAME")), str(network)
    raise HarpError(f"{address}: no interface of this host has it", Exit.MISSING)


def write_profile(file: Path, text: str) -> str:
    """Store a profile completely or not at all; return its path."""
    with files.writing(file):
        files.write_whole(file, text)
    return str(file)


def store_profile(file: Path, text: Any, ifname: str, peers: str) -> str:
    """Store the measuring host's profile, if it is for this NIC and peer; return its path."""
    try:
        entries = profile.parse(str(text))
        for entry in entries:
            if (entry.ifname, entry.peers) != (ifname, peers):
                raise profile.ProfileError(
                    f"it is for {entry.ifname}, peers {entry.peers or 'all'}, and {ifname}, peers"
                    f" {peers} was measured"
                )
    except profile.ProfileError as error:
        raise HarpError(f"the peer sent a profile that can't be used: {error}") from error
    times = tomllib.loads(str(text)).get("tuner")
    return write_profile(file, profile.text(entries, tuner=times))


def _obey(link: Link, ifname: str, peers: str, file: Path, say: Say) -> None:
    """Execute the runs that the measuring host requests, until it sends the profile."""
    address = str(link.sock.getpeername()[0]).removeprefix("::ffff:")
    while True:
        message = link.receive()
        if "profile" in message:
            link.send({"written": store_profile(file, message["profile"], ifname, peers)})
            return
        run = message.get("run")
        if not isinstance(run, dict):
            raise HarpError(f"{link.peer}: sent neither a run nor a profile")
        shape, path, port = ALL_SHAPES.get(str(run.get("shape"))), run.get("path"), run.get("port")
        if shape is None or path not in PATHS or type(port) is not int or not 1024 <= port < 65536:
            raise HarpError(f"{link.peer}: requested a run that this version does not know")
        say(f"{shape.name} over {path}")
        with running_rank(1, endpoint(address, port), shape, path, ifname) as own:
            try:
                own.finish(_RUN_TIMEOUT_S)
                link.send({"done": True})
            except HarpError as error:
                link.send({"failed": str(error)})


def serve(listener: socket.socket, token: str, ifname: str | None, file: Path, say: Say) -> None:
    """Wait for a measuring host that knows the token, serve it, and write its profile to file.

    ifname: the NIC to measure; None: the one towards the peer. A connection that does not prove the
    token within _PROOF_TIMEOUT_S is closed and reported in one line.
    """
    while True:
        sock, address = listener.accept()
        with Link(sock, endpoint(address[0].removeprefix("::ffff:"), address[1])) as link:
            try:
                sock.settimeout(_PROOF_TIMEOUT_S)
                link.authenticate(token, waits=True)
            except HarpError as error:
                say(f"refused: {error}")
                continue
            # The measuring host starts its own rank before it requests the next run.
            sock.settimeout(2 * _RUN_TIMEOUT_S)
            name, peers = interface_of(str(sock.getsockname()[0]).removeprefix("::ffff:"))
            name = ifname or name
            link.send({"host": socket.gethostname(), "ifname": name, "peers": peers})
            _obey(link, name, peers, file, say)
            return
