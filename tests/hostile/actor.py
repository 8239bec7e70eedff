# SPDX-License-Identifier: Apache-2.0
"""A process with the plugin that executes a test's commands, one JSON line per command.

Imported, this module is the test's side (`Actor`). Run as a program, it loads one plugin
(ncclnet.Net). A test can start a command and read its answer later.
"""

import base64
import contextlib
import json
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

TIMEOUT_S = 60.0


class ActorError(Exception):
    """The command failed in the process; the text is its exception."""


class Actor:
    """The test's end of one process."""

    def __init__(self, netns: str | None, env: dict[str, str], prefix: list[str] | None = None):
        command = ["ip", "netns", "exec", netns] if netns else []
        command += (prefix or []) + [sys.executable, __file__]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **env},
            text=True,
        )
        self.pid = self.process.pid

    def start(self, command: str, **args: Any) -> None:
        """Sends a command; result() reads its answer."""
        self.process.stdin.write(json.dumps({"command": command, **args}) + "\n")
        self.process.stdin.flush()

    def result(self) -> Any:
        line = self.process.stdout.readline()
        if not line:
            raise ActorError(f"the process ended with {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ActorError(answer["error"])
        return answer["value"]

    def call(self, command: str, **args: Any) -> Any:
        self.start(command, **args)
        return self.result()

    def load(self, **args: Any) -> None:
        """Loads HARP's plugin."""
        from harp import _paths

        self.call("load", path=str(_paths.plugin()), **args)

    def kill(self) -> None:
        """Sends SIGKILL and waits for the end of the process."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(BrokenPipeError, OSError):
                self.process.stdin.close()
            try:
                self.process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                with contextlib.suppress(BrokenPipeError, OSError):
                    stream.close()


@contextlib.contextmanager
def actors(*processes: Actor) -> Iterator[tuple[Actor, ...]]:
    """Closes all processes at the end."""
    try:
        yield processes
    finally:
        for actor in processes:
            actor.close()


@contextlib.contextmanager
def polled(receiver: Actor, listen: int) -> Iterator[None]:
    """Meanwhile, the receiver calls accept, which must return no comm."""
    assert receiver.call("poll", listen=listen) == "polling"
    yield
    receiver.start("warnings")  # ends poll()
    assert receiver.result() is False
    receiver.result()


def pattern(stream: int | str, message: int, size: int) -> bytes:
    """A message's bytes, pseudorandom by stream and message number."""
    return random.Random(f"{stream}/{message}").randbytes(size)


class Flow:
    """One comm of pump(). A receive that is pending after a pump belongs to the next pump."""

    def __init__(self, net: Any, stream: int, comm: int, is_sender: bool) -> None:
        self.net, self.stream, self.comm, self.is_sender = net, stream, comm, is_sender
        self.pending: list[Any] = []
        self.number = self.first = 0  # of the next message; of this pump's first message
        self.is_last_sent = self.is_done = False
        self.result = "ncclSuccess"

    def restart(self) -> None:
        self.first, self.is_last_sent, self.is_done = self.number, False, False

    def step(self, errors: type[Exception], size: int, stop: bool) -> None:
        try:
            if self.is_sender:
                self._send(size, stop)
            else:
                self._receive(size)
        except errors as error:
            self.result, self.is_done = error.result, True  # type: ignore[attr-defined]

    def _send(self, size: int, stop: bool) -> None:
        if not self.is_last_sent and len(self.pending) < 4:
            data = b"" if stop else pattern(self.stream, self.number, size)
            if request := self.net.isend(self.comm, data):
                self.pending.append(request)
                self.number += not stop
                self.is_last_sent = stop
        if self.pending and self.pending[0].test() is not None:
            self.pending.pop(0)
            self.is_done = self.is_last_sent and not self.pending

    def _receive(self, size: int) -> None:
        if len(self.pending) < 4 and (request := self.net.irecv(self.comm, size)):
            self.pending.append(request)
        if (received := self.pending[0].test()) is None:
            return
        request = self.pending.pop(0)
        if received == 0:
            self.is_done = True
            return
        expected = pattern(self.stream, self.number, size)
        assert request.buffer.raw[:received] == expected, (
            f"stream {self.stream}: message {self.number}"
        )
        self.number += 1


# ---- the process's side ------------------------------------------------------------------------


class Commands:
    """Each public method is a command; so is each method of the plugin (ncclnet.Net)."""

    def __init__(self) -> None:
        self.net: Any = None
        self.forked: list[int] = []
        self.flows: dict[int, Flow] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.net, name)

    def load(self, path: str, logs: bool = True) -> None:
        """logs: False for tests of os.fork(), which would deadlock with a logger in Python."""
        import ncclnet

        self.ncclnet = ncclnet
        self.net = ncclnet.Net(path, logs=logs)

    def log(self) -> list[str]:
        return [text for _, text in self.net.lines]

    def listen(self) -> list[Any]:
        handle, comm = self.net.listen()
        return [base64.b64encode(handle).decode(), comm]

    def listen_in_thread(self) -> None:
        """Returns at once; the thread opens the instances."""
        threading.Thread(target=self.net.listen, daemon=True).start()

    def open_interfaces(self) -> None:
        """Opens the instances, as the first listen does."""
        self.net.close_listen(self.net.listen()[1])

    def accept(self, listen: int, timeout_s: float = TIMEOUT_S) -> int:
        return self.ncclnet.poll_until([lambda: self.net.accept_step(listen)], timeout_s)[0]

    def connect(self, handle: str, timeout_s: float = TIMEOUT_S) -> int:
        step = self.net.connect_start(base64.b64decode(handle))
        return self.ncclnet.poll_until([step], timeout_s)[0]

    def poll(self, listen: int) -> bool:
        """Answers at once; then calls accept until the next command. Returns True for a peer."""
        print(json.dumps({"value": "polling"}), flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            if self.net.accept_step(listen) is not None:
                return True
        return False

    def listen_many(self, count: int) -> list[list[Any]]:
        return [self.listen() for _ in range(count)]

    def join(
        self, handles: list[str], listens: list[int], timeout_s: float = TIMEOUT_S
    ) -> list[list[int]]:
        """Connects to all handles and accepts on all listen comms concurrently: [send comms,
        receive comms], in their order."""
        steps: list[Any] = [self.net.connect_start(base64.b64decode(handle)) for handle in handles]
        steps += [lambda comm=listen: self.net.accept_step(comm) for listen in listens]
        comms = self.ncclnet.poll_until(steps, timeout_s)
        return [comms[: len(handles)], comms[len(handles) :]]

    def connect_each(self, handles: list[str]) -> list[int]:
        return [self.connect(handle) for handle in handles]

    def exchange(
        self,
        sends: list[list[Any]],
        receives: list[list[Any]],
        size: int,
        timeout_s: float = TIMEOUT_S,
    ) -> int:
        """Transfers a message per [comm, name] concurrently, checks it; returns the number."""
        requests = []
        for comm, name in sends:
            data = pattern(name, 0, size)
            requests.append((self._post(lambda c=comm, d=data: self.net.isend(c, d)), None))
        for comm, name in receives:
            requests.append((self._post(lambda c=comm: self.net.irecv(c, size)), name))
        deadline = time.monotonic() + timeout_s
        pending = list(requests)
        while pending:
            assert time.monotonic() < deadline, f"{len(pending)} of {len(requests)} are pending"
            pending = [(request, name) for request, name in pending if request.test() is None]
            time.sleep(0)
        for request, name in requests:
            assert name is None or request.buffer.raw[:size] == pattern(name, 0, size), name
        return len(requests)

    def resources(self) -> list[int]:
        """[open descriptors, threads, resident KiB]."""
        status = pathlib.Path("/proc/self/status").read_text()
        pairs = (line.partition(":") for line in status.splitlines())
        values = {name: value.split() for name, _, value in pairs}
        descriptors = len(list(pathlib.Path("/proc/self/fd").iterdir()))
        return [descriptors, int(values["Threads"][0]), int(values["VmRSS"][0])]

    def send(self, comm: int, data: str, timeout_s: float = TIMEOUT_S) -> int:
        request = self._post(lambda: self.net.isend(comm, base64.b64decode(data)))
        return request.wait(timeout_s)

    def receive(self, comm: int, size: int, timeout_s: float = TIMEOUT_S) -> str:
        request = self._post(lambda: self.net.irecv(comm, size))
        received = request.wait(timeout_s)
        return base64.b64encode(request.buffer.raw[:received]).decode()

    def receive_error(self, comm: int, size: int, timeout_s: float = TIMEOUT_S) -> list[Any]:
        """Waits for a receive to fail: [result, seconds]."""
        start_s = time.monotonic()
        try:
            self._post(lambda: self.net.irecv(comm, size)).wait(timeout_s)
        except self.ncclnet.NcclError as error:
            return [error.result, time.monotonic() - start_s]
        raise AssertionError("the receive succeeded")

    def pump(
        self,
        sends: list[int],
        receives: list[int],
        size: int,
        seconds: float,
        timeout_s: float = TIMEOUT_S,
    ) -> list[Any]:
        """Transfers messages on many comms, four in flight on each, and checks every byte.

        Comm i of either list carries stream i; its message m is pattern(i, m). After the time, a
        sender sends an empty message, which ends its receiver. Returns for each send comm, then
        for each receive comm: [messages of this pump, result].
        """
        flows = []
        for comms, is_sender in ((sends, True), (receives, False)):
            for stream, comm in enumerate(comms):
                flow = self.flows.setdefault(comm, Flow(self.net, stream, comm, is_sender))
                flow.restart()
                flows.append(flow)
        stop = time.monotonic() + seconds
        while not all(flow.is_done for flow in flows):
            now = time.monotonic()
            assert now < stop + timeout_s, [(flow.stream, flow.number) for flow in flows]
            for flow in flows:
                if not flow.is_done:
                    flow.step(self.ncclnet.NcclError, size, now >= stop)
            time.sleep(0)
        return [[flow.number - flow.first, flow.result] for flow in flows]

    def fork_sleeper(self) -> int:
        """Forks a child that only sleeps, as a DataLoader worker would."""
        pid = os.fork()
        if pid == 0:
            devnull = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(devnull, fd)
            signal.pause()
            os._exit(0)
        self.forked.append(pid)
        return pid

    def fork_while_opening(self, path: str, cycles: int) -> list[int]:
        """Forks sleepers while a thread opens and closes the plugin, without a logger: see load().
        Returns [inits that failed, sleepers that hold a BPF object]."""
        import ctypes as ct

        import ncclnet

        table = ncclnet._Table.in_dll(ct.CDLL(path), "ncclNetPlugin_v11")
        errors: list[int] = []

        def open_and_close(cycles: int) -> None:
            for _ in range(cycles):
                ctx, config = ct.c_void_p(), (ct.c_int * 4)(-1)
                result = table.init(ct.byref(ctx), 1, config, None, None)
                if result:
                    errors.append(result)
                else:
                    table.finalize(ctx)

        thread = threading.Thread(target=open_and_close, args=(cycles,))
        thread.start()
        while thread.is_alive():
            self.fork_sleeper()
            thread.join(0.005)
        open_and_close(1)  # with all the sleepers there
        holders = 0
        for pid in self.forked:
            folder = pathlib.Path(f"/proc/{pid}/fd")
            links = [str(entry.readlink()) for entry in folder.iterdir()]
            holders += any("bpf" in link for link in links)
        return [len(errors), holders]

    def threads(self) -> list[list[Any]]:
        """Name and allowed processors of each thread of this process."""
        threads = []
        for task in pathlib.Path("/proc/self/task").iterdir():
            tid = int(task.name)
            name = (task / "comm").read_text().strip()
            threads.append([name, sorted(os.sched_getaffinity(tid))])
        return threads

    def for_each(self, name: str, values: list[int]) -> None:
        for value in values:
            getattr(self, name)(value)

    def settled_resources(self) -> list[int]:
        """resources(), after half a second without change: closed comms linger for a moment."""
        last, unchanged = self.resources(), 0
        while unchanged < 10:
            time.sleep(0.05)
            now = self.resources()
            unchanged = unchanged + 1 if now[:2] == last[:2] else 0
            last = now
        return last

    def _post(self, post: Any) -> Any:
        deadline = time.monotonic() + 10
        while (request := post()) is None:
            assert time.monotonic() < deadline, "no free request in time"
            time.sleep(0)
        return request


def main() -> None:
    commands = Commands()
    for line in sys.stdin:
        args = json.loads(line)
        name = args.pop("command")
        try:
            answer: dict[str, Any] = {"value": getattr(commands, name)(**args)}
        except Exception as error:  # reported to the test
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    for pid in commands.forked:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
