# SPDX-License-Identifier: Apache-2.0
"""harpctl tune: its decisions, the peers that it accepts, and one real measurement of two hosts."""

import os
import signal
import socket
import subprocess
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from harpctl import COMMAND, harpctl

from harp.bench import tune
from harp.bench.tune import HARP, KERNEL, Link, Times
from harp.cli import tune as cli_tune
from harp.config import profile
from harp.errors import Exit, HarpError
from harp.lab import Host, Lab

TOKEN = "0123456789abcdef"


def times(speeds: dict[int, float]) -> Times:
    """Return times of three rounds, in the second of which the machine is three times slower."""
    kernel = {size: [10.0, 30.0, 10.0] for size in speeds}
    harp = {size: [time / speed for time in kernel[size]] for size, speed in speeds.items()}
    return {HARP: harp, KERNEL: kernel}


@pytest.mark.parametrize(
    ("speeds", "limit"),
    [
        ({8: 2.0, 4096: 1.5, 65536: 0.8, 1 << 20: 0.5}, "4KiB"),
        ({8: 2.0, 4096: 1.5, 65536: 1.2, 1 << 20: 0.5}, "64KiB"),
        ({8: 2.0, 4096: 1.5, 65536: 1.2, 1 << 20: 1.3}, "all"),
        ({8: 2.0, 4096: 1.0, 65536: 2.0, 1 << 20: 2.0}, "none"),
    ],
)
def test_harp_lanes_carry_the_size_classes_below_the_first_slower_one(
    speeds: dict[int, float], limit: str
) -> None:
    assert tune.harp_up_to({"allreduce": times(speeds)}) == limit


def test_harp_must_be_faster_in_every_shape_of_a_class() -> None:
    fast, slow = times({8: 2.0, 65536: 2.0}), times({65536: 1.05})
    assert tune.harp_up_to({"allreduce": fast}) == "all"
    assert tune.harp_up_to({"allreduce": fast, "stream": slow}) == "4KiB"


@pytest.mark.parametrize("nic", [("eth0", "10.1.0.0/16"), ("eth1", ""), ("eth1", "10.2.0.0/16")])
def test_a_profile_of_another_nic_is_refused(tmp_path: Path, nic: tuple[str, str]) -> None:
    measured = profile.Entry("eth1", "native-copy", "all", "10.1.0.0/16")
    foreign = profile.Entry(nic[0], "native-copy", "all", nic[1])
    with pytest.raises(HarpError, match=r"for .*, and eth1, peers 10.1.0.0/16 was measured"):
        tune.store_profile(
            tmp_path / "file", profile.text([measured, foreign]), "eth1", "10.1.0.0/16"
        )
    assert not list(tmp_path.iterdir())


def test_only_the_measured_nic_is_stored(tmp_path: Path) -> None:
    times = {"latency_ns": 5, "rates": "8:3", "channels": "1:2"}
    own = profile.text([profile.Entry("eth1", "native-copy", "all", "10.1.0.0/16")], tuner=times)
    file = tmp_path / "profile.toml"
    tune.store_profile(file, f"{own}# text of the peer\n", "eth1", "10.1.0.0/16")
    assert file.read_text() == own
    assert tomllib.loads(own)["tuner"] == times


def test_unknown_mode_is_named() -> None:
    with pytest.raises(HarpError, match="does not name the NIC's mode: 'carrier pigeons'"):
        tune.nic_mode("carrier pigeons")


# --------------------------------------------------------------------------------------------------
# The connection.
#
class Server:
    """A host that waits for its peer, in a thread."""

    def __init__(self, file: Path = Path("/nonexistent/profile.toml")) -> None:
        self.file = file
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.log: list[str] = []
        self.error: HarpError | None = None
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        try:
            tune.serve(self.listener, TOKEN, None, self.file, self.log.append)
        except HarpError as error:
            self.error = error
        finally:
            self.listener.close()

    def link(self) -> Link:
        link = tune.connect("127.0.0.1", self.port, TOKEN)
        link.receive()
        return link

    def join(self) -> None:
        """Wait until it has served its peer."""
        self.thread.join(30)
        assert not self.thread.is_alive()


def test_profile_reaches_a_host_that_knows_the_token(tmp_path: Path) -> None:
    server = Server(tmp_path / "profile.toml")
    text = profile.text([profile.Entry("lo", "generic-copy", "none", "127.0.0.0/8")])
    with server.link() as link:
        link.send({"profile": text})
        assert link.receive() == {"written": str(server.file)}
    server.join()
    assert server.file.read_text() == text


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"[]\n",
        b'{"harp_tune": 1}\n{"proof": "guess"}\n',
        b"\xff" * 99,
    ],
)
def test_an_unknown_host_is_refused_and_the_next_is_served(sent: bytes) -> None:
    server = Server()
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.sendall(sent)
    with server.link() as link:
        link.send({"profile": {}})
    server.join()
    assert len(server.log) == 1
    assert server.log[0].startswith("refused: 127.0.0.1:")


def test_wrong_token_is_refused_by_name() -> None:
    server = Server()
    with pytest.raises(HarpError, match=rf"127.0.0.1:{server.port}: "):
        tune.connect("127.0.0.1", server.port, "wrong")
    with server.link() as link:
        link.send({"profile": {}})
    server.join()
    assert "wrong token" in server.log[0]


@pytest.mark.parametrize(
    "run",
    [
        {"shape": "allreduce", "path": "xdp; reboot", "port": 5000},
        {"shape": "rm", "path": "xdp", "port": 5000},
        {"shape": "stream", "path": "kernel", "port": 22},
        {"shape": "stream", "path": "kernel", "port": True},
        {},
    ],
)
def test_unknown_runs_are_refused(run: dict[str, Any]) -> None:
    server = Server()
    with server.link() as link:
        link.send({"run": run})
        with pytest.raises(HarpError, match="closed the connection"):
            link.receive()
    server.join()
    assert server.error is not None
    assert "requested a run that this version does not know" in str(server.error)


def test_a_missing_peer_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(HarpError, match="run `harpctl tune` there first") as caught:
        tune.connect("127.0.0.1", port, TOKEN)
    assert caught.value.code == Exit.MISSING


# --------------------------------------------------------------------------------------------------
# The command.
#
@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["peer"], "--token is missing"), (["--token", "x"], "--token needs PEER")],
)
def test_token_and_peer_need_each_other(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(cli_tune.tune, arguments)
    assert isinstance(result.exception, HarpError)
    assert result.exception.code == Exit.USAGE
    assert message in str(result.exception)


def test_profile_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = tmp_path / "file" / "profile.toml"
    with pytest.raises(HarpError, match=r"profile.toml can't be written: Not a directory"):
        tune.write_profile(file, "version = 1\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """The rank that it runs for the peer ends, and its folder is removed."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    port = tune._free_port("127.0.0.1")
    command = [*COMMAND, "tune", "--port", str(port), "--profile", str(tmp_path / "profile.toml")]
    env = os.environ | {"PYTHONUNBUFFERED": "1", "TMPDIR": str(temporary)}
    with (
        socket.create_server(("127.0.0.1", 0)) as root,
        subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        token = process.stdout.readline().split()[-1]
        with tune.connect("127.0.0.1", port, token) as link:
            link.receive()
            link.send({"run": {"shape": "stream", "path": KERNEL, "port": root.getsockname()[1]}})
            with root.accept()[0]:  # its rank runs
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
                (rank,) = children.read_text().split()
                process.send_signal(number)
                assert process.wait(20) == Exit.INTERRUPTED
    assert not Path(f"/proc/{rank}").exists()
    assert list(temporary.iterdir()) == []


def _harpctl(host: Host, *arguments: str) -> Any:
    return host.popen([*COMMAND, "tune", *arguments], env=os.environ | {"PYTHONUNBUFFERED": "1"})


def test_two_hosts_get_a_profile_each(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("client.toml", "server.toml")]
    with Lab() as lab:
        server = _harpctl(lab.hosts[1], "--profile", str(files[1]))
        line = server.stdout.readline() + server.stdout.readline()
        token = line.split()[-1]
        client = _harpctl(
            lab.hosts[0],
            *(lab.hosts[1].address, "--token", token),
            *("--rounds", "1", "--nccl", "--profile", str(files[0])),
        )
        out, err = client.communicate(timeout=120)
        assert client.returncode == 0, err
        server.communicate(timeout=30)
        assert server.returncode == 0
    profiles = [tomllib.loads(file.read_text()) for file in files]
    assert profiles[0] == profiles[1]
    (nic,) = profiles[0]["nic"]
    assert (nic["ifname"], nic["mode"]) == ("eth0", "generic-copy")
    assert f'harp_up_to = "{nic["harp_up_to"]}"' in files[0].read_text()
    assert "path auto: " in out
    tuner = profiles[0]["tuner"]
    assert 1_000 < tuner["latency_ns"] < 10**9
    assert [pair.split(":")[0] for pair in tuner["channels"].split()] == ["1", "2", "4", "8"]
    explained = harpctl("tune", "--profile", str(files[0]), "--explain", "allreduce", "1M", "8")
    assert explained.returncode == 0, explained.stderr
    assert explained.stdout.count("chosen") == 1
