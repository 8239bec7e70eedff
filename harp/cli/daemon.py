# SPDX-License-Identifier: Apache-2.0
"""harpctl start, stop, restart, status, instances: control of harpd."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from harp import config
from harp import output as console
from harp.cli.logs import LOG_NAME
from harp.cli.options import file_option, interval_option, output_option, show, watch_option
from harp.cli.options import watch as repeat
from harp.daemon import rundir
from harp.daemon.client import DaemonClient, SilentDaemonError, understood
from harp.errors import Exit, HarpError
from harp.waiting import readable
from harp.words import plural

START_S, STOP_S = 60.0, 30.0


def _connect(file: Path | None) -> DaemonClient:
    return DaemonClient(config.load(file).daemon.socket_path)


def _running(file: Path | None) -> DaemonClient | None:
    """Return a connection; None if no harpd runs."""
    try:
        return _connect(file)
    except HarpError as error:
        if isinstance(error, SilentDaemonError) or error.code is not Exit.NOT_RUNNING:
            raise
        return None


def _age(seconds: float) -> str:
    return str(timedelta(seconds=int(seconds)))


def _command(file: Path | None, log: Path | None) -> list[str]:
    command = [sys.executable, "-m", "harp.daemon"]
    if file is not None:
        command += ["--config", str(file.absolute())]
    if log is not None:
        command += ["--log", str(log)]
    return command


def _wait_ready(process: subprocess.Popen[str], ready: socket.socket) -> None:
    """Wait until harpd sends READY=1; HarpError with its message if it ends before that."""
    assert process.stderr is not None
    deadline = time.monotonic() + START_S
    pidfd = os.pidfd_open(process.pid)
    try:
        while True:
            left_s = deadline - time.monotonic()
            fds = readable([ready.fileno(), pidfd], left_s)
            if ready.fileno() in fds:
                if b"READY=1" in ready.recv(4096).split(b"\n"):
                    return
            elif pidfd in fds:
                text = process.stderr.read().strip() or "harpd ended without a message"
                line = text.splitlines()[-1].removeprefix("harpd: ")
                raise HarpError(line, Exit(process.wait() or Exit.FAILURE))
            elif left_s <= 0:
                process.kill()
                raise HarpError(f"harpd was not ready after {START_S:.0f} s and was ended")
    finally:
        os.close(pidfd)


def _start_in_background(file: Path | None) -> int:
    run_dir = config.load(file).daemon.run_dir
    rundir.prepare(run_dir)  # the log contains the error
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
        ready.bind("")  # the kernel chooses an abstract name, which no other user can take before
        name = ready.getsockname().decode().replace("\0", "@", 1)
        process = subprocess.Popen(
            _command(file, run_dir / LOG_NAME),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | {"NOTIFY_SOCKET": name},
            start_new_session=True,
            text=True,
            errors="replace",
        )
        try:
            _wait_ready(process, ready)
        except BaseException:  # including Ctrl-C: harpd must not keep running
            process.terminate()
            process.wait(STOP_S)
            raise
    # Nothing reads its stderr from now on; its messages are in its log.
    assert process.stderr is not None
    process.stderr.close()
    process.returncode = 0  # no warning about a running process when the object is collected
    return process.pid


@click.command()
@file_option
@click.option("--foreground", is_flag=True, help="Stay, and log to stderr, until Ctrl-C.")
def start(file: Path | None, foreground: bool) -> None:
    """Start harpd, and return when it is ready.

    It leases queues of the NICs that harp.toml names to jobs. Exit code 6: it runs already.

    \b
    harpctl start
    harpctl start --foreground --file ./harp.toml
    """
    if foreground:
        os.execv(sys.executable, _command(file, None))
    running = _running(file)
    if running is not None:
        running.close()
        raise HarpError(f"{running.daemon} serves on {running.path} already", Exit.RUNNING)
    pid = _start_in_background(file)
    with _connect(file) as client:
        nics = ", ".join(device.ifname for device in client.devices) or "no NIC"
        text = f"{client.daemon} serves on {client.path} (process {pid}): {nics}"
        console.print_line(text)
        for nic in client.query("status")["nics"]:
            if nic["problem"]:
                problem = f"harpctl: {nic['ifname']} can't be leased: {nic['problem']}"
                console.print_line(problem, console.err)


def _device(lease: dict[str, Any]) -> str:
    if lease.get("device"):
        return f"DPDK port {lease['ifname']}"
    return f"{lease['ifname']} queue {lease['queue']}"


def _owners(instances: list[dict[str, Any]]) -> str:
    return ", ".join(
        f"process {lease['pid']} ({lease['label']}) on {_device(lease)}" for lease in instances
    )


def _clean_up(file: Path | None, force: bool) -> bool:
    """Clean up after a dead harpd; return False if there is nothing that this user may remove."""
    if os.geteuid() != 0:
        return False
    from harp import _host, _paths
    from harp.daemon import settings, takeover
    from harp.nicprep import Preparation

    _host.load_library(str(_paths.find(_paths.XDP_LIBRARY)))
    done = takeover.clean(settings.read(file), Preparation(), _host.unpin, force)
    for line in done:
        console.print_line(f"no harpd runs; {line}")
    return bool(done)


@click.command()
@file_option
@click.option("--force", is_flag=True, help="Stop although jobs use queues, and take these away.")
@understood()
def stop(file: Path | None, force: bool) -> None:
    """Stop harpd and undo its changes of the NICs.

    Refused (exit code 6) while jobs have leases, because they would lose their connections. To
    change harpd under running jobs, use `harpctl restart`. After a crash of harpd, `stop` removes
    what it left: XDP programs, changes of NICs, files. Exit code 7: no harpd runs, and nothing was
    left.

    \b
    harpctl stop
    harpctl stop --force
    """
    client = _running(file)
    if client is None:
        if not _clean_up(file, force):
            raise HarpError("no harpd runs, and there is nothing to clean up", Exit.NOT_RUNNING)
        return
    with client:
        pid = int(client.query("status")["pid"])
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError as error:
            text = f"harpd (process {pid}) has ended meanwhile"
            raise HarpError(text, Exit.NOT_RUNNING) from error
        try:
            answer = client.query("stop", force=force)
            if not answer["stopping"]:
                raise HarpError(
                    f"leased: {_owners(answer['instances'])}; end these jobs, or use --force, "
                    "which cuts their connections",
                    Exit.RUNNING,
                )
            if not readable([pidfd], STOP_S):
                raise HarpError(
                    f"harpd (process {pid}) has not ended after {STOP_S:.0f} s; see its log"
                )
        finally:
            os.close(pidfd)
    if client.path.exists() and not rundir.is_listening(client.path):
        raise HarpError(
            f"harpd has ended and left {client.path} behind: its log has the reason; run "
            "`harpctl stop` again to clean up"
        )
    console.print_line("harpd has stopped")


def _wait_for_restart(file: Path | None, since_s: float) -> dict[str, Any]:
    """Return the status of the new harpd; its socket is always open, and it replies when ready."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        client = _running(file)
        if client is None:
            raise HarpError("harpd did not come back; see its log", Exit.NOT_RUNNING)
        with client:
            status: dict[str, Any] = client.query("status")
        if status["since_s"] != since_s:  # may be earlier: the clock may have been set back
            return status
    raise HarpError(f"harpd has not restarted after {START_S:.0f} s; see its log")


@click.command()
@file_option
@understood()
def restart(file: Path | None) -> None:
    """Restart harpd, with a new version or configuration; jobs keep running.

    Starts harpd if none runs. Leases, ports and the XDP program stay. A job that requests a lease
    meanwhile waits.

    \b
    harpctl restart
    """
    client = _running(file)
    if client is None:
        pid = _start_in_background(file)
        console.print_line(f"no harpd ran; started one (process {pid})")
        return
    with client:
        answer = client.query("restart")
    status = _wait_for_restart(file, float(answer["since_s"]))
    leases = plural(status["leases"], "lease")
    console.print_line(
        f"harpd {status['version']} restarted (process {status['pid']}), {leases} taken over"
    )


def _nic_row(nic: dict[str, Any]) -> list[object]:
    queues = nic["queues"]
    leased = sum(state == "leased" for state in queues.values())
    state = "problem" if nic["problem"] else "up" if nic["up"] else "down"
    return [
        nic["ifname"],
        state,
        nic["mode"] or "-",
        len(queues),
        leased,
        nic["queues_free"],
        nic["rss"],
        nic["ports_per_instance"],
        nic["verdicts"].get("rss_mismatch", 0),
        ", ".join(nic["addresses"]) or "-",
    ]


def _port_rows(ports: list[dict[str, Any]]) -> list[list[object]]:
    return [
        [
            port["name"],
            "problem" if port["problem"] else "leased" if port["pid"] else "free",
            port["device"].partition(",")[0],
            f"{port['queues_leased']} of {port['queues']}" if port["pid"] else port["queues"],
            f"process {port['pid']} ({port['label']})" if port["pid"] else "-",
            ", ".join(port["addresses"]) or "-",
        ]
        for port in ports
    ]


def _nic_notes(nic: dict[str, Any]) -> Iterator[str]:
    if nic["problem"]:
        yield f"{nic['ifname']} can't be leased: {nic['problem']}"
    if nic["mode"] == "generic":
        yield nic["mode_why"]
    if nic["allow_sources"]:
        yield (
            f"{nic['ifname']}: takes packets from {', '.join(nic['allow_sources'])}; dropped "
            f"from other sources: {nic['verdicts'].get('drop_source', 0)}"
        )
    if nic["queues_unreachable_why"]:
        yield nic["queues_unreachable_why"]
    for queue, waiting in nic["queues_waiting"].items():
        yield (
            f"{nic['ifname']} queue {queue}: held by a child of process {waiting['pid']} for "
            f"{waiting['for_s']:.0f} s"
        )


def _status_view(status: dict[str, Any]) -> Group:
    head = (
        f"{status['daemon']} {status['version']}, process {status['pid']}, up "
        f"{_age(status['uptime_s'])}, {plural(status['leases'], 'lease')}, on {status['socket']}"
    )
    columns = (
        *("NIC", "state", "XDP", "queues", "leased", "free", "RSS", "ports each"),
        *("rss_mismatch", "addresses"),
    )
    nics = console.table("", columns, [_nic_row(nic) for nic in status["nics"]])
    parts: list[RenderableType] = [Text(head), nics]
    ports = status.get("dpdk", [])
    if ports:
        names = ("DPDK port", "state", "device", "queues", "holder", "addresses")
        parts.append(console.table("", names, _port_rows(ports)))
        parts += [Text(f"{port['name']}: {port['problem']}") for port in ports if port["problem"]]
    parts += [Text(note) for nic in status["nics"] for note in _nic_notes(nic)]
    if not status["pinned"]:
        parts.append(
            Text(
                f"no BPF file system in {status['run_dir']}: jobs will lose their connections when "
                "harpd ends; its log has the reason"
            )
        )
    if status["state"] != "good":
        parts.append(
            Text(
                f"{status['run_dir']}/state.json can't be written: {status['state']}; until it "
                "can, a restarted harpd loses the leases granted now"
            )
        )
    return Group(*parts)


@click.command()
@file_option
@interval_option
@watch_option
@output_option
@understood()
def status(file: Path | None, interval: float, watch: bool, output: str) -> None:
    """Show harpd's NICs, their queues, DPDK ports, and problems.

    Exit code 7: no harpd runs.

    \b
    harpctl status
    harpctl status --watch
    harpctl status -o json
    """

    def look() -> dict[str, Any]:
        with _connect(file) as client:
            answer: dict[str, Any] = client.query("status")
        return answer

    if watch:
        repeat(look, _status_view, interval, output == "json")
    show(look(), output, lambda document: console.print_whole(_status_view(document)))


@click.command()
@file_option
@output_option
@understood()
def instances(file: Path | None, output: str) -> None:
    """List the leases of harpd: which process has which queue or DPDK port.

    \b
    harpctl instances
    harpctl instances -o json
    """
    with _connect(file) as client:
        leases = client.query("instances")
    if output == "json":
        console.print_json(leases)
        return
    columns = ("NIC", "queue", "ports", "process", "user", "age", "job", "remarks")
    rows = [
        (
            lease["ifname"],
            f"all ({lease['queues']})" if lease.get("device") else lease["queue"],
            f"{lease['ports'][0]}-{lease['ports'][1]}" if lease["ports"] else "all",
            lease["pid"],
            lease["uid"],
            _age(lease["age_s"]),
            lease["label"],
            "; ".join(lease["marks"]) or "-",
        )
        for lease in leases["instances"]
    ]
    if not rows:
        console.out.print("no leases")
        return
    console.print_table(columns, rows)
