# SPDX-License-Identifier: Apache-2.0
"""A process in a namespace that executes a test's commands, one JSON line per command.

As a module it is the test's side (`Actor`). Run as a program it is the process's side, which holds
one plugin (ncclnet.Net) and answers each command with one line. A test can start a command and
collect its answer later, and attack in between.
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

HANGS_S = 60.0


class ActorError(Exception):
    """The command raised over there; the text is its exception."""


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
        """Sends a command; result() collects its answer."""
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
        """SIGKILL, and waits for the end."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(BrokenPipeError, OSError):
                self.process.stdin.close()
            try:
                self.process.wait(HANGS_S)
            except subprocess.TimeoutExpired:
                self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                with contextlib.suppress(BrokenPipeError, OSError):
                    stream.close()


@contextlib.contextmanager
def actors(*made: Actor) -> Iterator[tuple[Actor, ...]]:
    """Ends them all, whatever happens."""
    try:
        yield made
    finally:
        for actor in made:
            actor.close()


@contextlib.contextmanager
def polled(receiver: Actor, listen: int) -> Iterator[None]:
    """The receiver calls accept() meanwhile, and no peer arrives."""
    assert receiver.call("poll", listen=listen) == "polling"
    yield
    receiver.start("warnings")  # ends it
    assert receiver.result() is False
    receiver.result()


def pattern(stream: int | str, message: int, size: int) -> bytes:
    """The bytes of a message: no two alike, and none of them twice at the same place."""
    return random.Random(f"{stream}/{message}").randbytes(size)


class Flow:
    """One comm of a pump. Receives that a pump leaves behind are the next one's."""

    def __init__(self, net: Any, stream: int, comm: int, sends: bool) -> None:
        self.net, self.stream, self.comm, self.sends = net, stream, comm, sends
        self.flying: list[Any] = []
        self.number = self.begin = 0  # of the next message to begin; of the first of this pump
        self.last = self.over = False
        self.result = "ncclSuccess"

    def restart(self) -> None:
        self.begin, self.last, self.over = self.number, False, False

    def step(self, errors: type[Exception], size: int, stop: bool) -> None:
        try:
            if self.sends:
                self._send(size, stop)
            else:
                self._receive(size)
        except errors as error:
            self.result, self.over = error.result, True  # type: ignore[attr-defined]

    def _send(self, size: int, stop: bool) -> None:
        if not self.last and len(self.flying) < 4:
            data = b"" if stop else pattern(self.stream, self.number, size)
            if request := self.net.isend(self.comm, data):
                self.flying.append(request)
                self.number += not stop
                self.last = stop
        if self.flying and self.flying[0].test() is not None:
            self.flying.pop(0)
            self.over = self.last and not self.flying

    def _receive(self, size: int) -> None:
        if len(self.flying) < 4 and (request := self.net.irecv(self.comm, size)):
            self.flying.append(request)
        if (got := self.flying[0].test()) is None:
            return
        request = self.flying.pop(0)
        if got == 0:
            self.over = True
            return
        want = pattern(self.stream, self.number, size)
        assert request.buffer.raw[:got] == want, f"stream {self.stream}: message {self.number}"
        self.number += 1


# ---- the process's side ------------------------------------------------------------------------


class Commands:
    """Each public method is a command, as are the other methods of the plugin (ncclnet.Net)."""

    def __init__(self) -> None:
        self.net: Any = None
        self.forked: list[int] = []
        self.flows: dict[int, Flow] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.net, name)

    def load(self, path: str, logs: bool = True) -> None:
        """logs: the logger is in Python, so the plugin must not call it during os.fork(), which
        holds the interpreter's lock."""
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
        """The first listen opens the instances, if they can be opened."""
        self.net.close_listen(self.net.listen()[1])

    def accept(self, listen: int, timeout_s: float = HANGS_S) -> int:
        return self.ncclnet.poll_until([lambda: self.net.accept_step(listen)], timeout_s)[0]

    def connect(self, handle: str, timeout_s: float = HANGS_S) -> int:
        step = self.net.connect_start(base64.b64decode(handle))
        return self.ncclnet.poll_until([step], timeout_s)[0]

    def poll(self, listen: int) -> bool:
        """Answers at once, and accepts until the next command: did a peer arrive?"""
        print(json.dumps({"value": "polling"}), flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            if self.net.accept_step(listen) is not None:
                return True
        return False

    def listen_many(self, count: int) -> list[list[Any]]:
        return [self.listen() for _ in range(count)]

    def join(
        self, handles: list[str], listens: list[int], timeout_s: float = HANGS_S
    ) -> list[list[int]]:
        """Connects to all of these and accepts on all of those at once: [send comms, receive
        comms], in their order."""
        steps: list[Any] = [self.net.connect_start(base64.b64decode(each)) for each in handles]
        steps += [lambda listen=each: self.net.accept_step(listen) for each in listens]
        comms = self.ncclnet.poll_until(steps, timeout_s)
        return [comms[: len(handles)], comms[len(handles) :]]

    def connect_each(self, handles: list[str]) -> list[int]:
        """Connects to one after the other."""
        return [self.connect(handle) for handle in handles]

    def cross(
        self,
        sends: list[list[Any]],
        receives: list[list[Any]],
        size: int,
        timeout_s: float = HANGS_S,
    ) -> int:
        """One message over each [comm, name], all at once, received ones checked; how many."""
        flying = []
        for comm, name in sends:
            data = pattern(name, 0, size)
            flying.append((self._post(lambda c=comm, d=data: self.net.isend(c, d)), None))
        for comm, name in receives:
            flying.append((self._post(lambda c=comm: self.net.irecv(c, size)), name))
        deadline = time.monotonic() + timeout_s
        waiting = list(flying)
        while waiting:
            assert time.monotonic() < deadline, f"{len(waiting)} of {len(flying)} wait"
            waiting = [each for each in waiting if each[0].test() is None]
            time.sleep(0)
        for request, name in flying:
            assert name is None or request.buffer.raw[:size] == pattern(name, 0, size), name
        return len(flying)

    def resources(self) -> list[int]:
        """[open descriptors, threads, resident KiB]."""
        status = pathlib.Path("/proc/self/status").read_text()
        pairs = (line.partition(":") for line in status.splitlines())
        values = {name: value.split() for name, _, value in pairs}
        descriptors = len(list(pathlib.Path("/proc/self/fd").iterdir()))
        return [descriptors, int(values["Threads"][0]), int(values["VmRSS"][0])]

    def send(self, comm: int, data: str, timeout_s: float = HANGS_S) -> int:
        request = self._post(lambda: self.net.isend(comm, base64.b64decode(data)))
        return request.wait(timeout_s)

    def receive(self, comm: int, size: int, timeout_s: float = HANGS_S) -> str:
        request = self._post(lambda: self.net.irecv(comm, size))
        got = request.wait(timeout_s)
        return base64.b64encode(request.buffer.raw[:got]).decode()

    def receive_error(self, comm: int, size: int, timeout_s: float = HANGS_S) -> list[Any]:
        """Waits for a receive to fail: [result, seconds it took]."""
        begin = time.monotonic()
        try:
            self._post(lambda: self.net.irecv(comm, size)).wait(timeout_s)
        except self.ncclnet.NcclError as error:
            return [error.result, time.monotonic() - begin]
        raise AssertionError("the receive succeeded")

    def pump(
        self,
        sends: list[int],
        receives: list[int],
        size: int,
        seconds: float,
        timeout_s: float = HANGS_S,
    ) -> list[Any]:
        """Messages on many comms at once, four in flight on each, every byte checked.

        Comm number i of either list carries stream i; its message m is pattern(i, m). Senders end
        with an empty message when the time is over, receivers when it comes. For each send, then
        each receive: [messages of this pump, "ncclSuccess" or the result that the comm ended with].
        """
        flows = []
        for comms, sending in ((sends, True), (receives, False)):
            for stream, comm in enumerate(comms):
                flow = self.flows.setdefault(comm, Flow(self.net, stream, comm, sending))
                flow.restart()
                flows.append(flow)
        stop = time.monotonic() + seconds
        while not all(flow.over for flow in flows):
            now = time.monotonic()
            assert now < stop + timeout_s, [(flow.stream, flow.number) for flow in flows]
            for flow in flows:
                if not flow.over:
                    flow.step(self.ncclnet.NcclError, size, now >= stop)
            time.sleep(0)
        return [[flow.number - flow.begin, flow.result] for flow in flows]

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
        """Forks sleepers while a thread opens and closes the plugin again and again: [inits that
        failed, the queue being busy; sleepers that hold a BPF object]. Without a logger: one in
        Python could not be called while os.fork() waits."""
        import ctypes as ct

        import ncclnet

        table = ncclnet._Table.in_dll(ct.CDLL(path), "ncclNetPlugin_v11")
        failed: list[int] = []

        def churn(cycles: int) -> None:
            for _ in range(cycles):
                ctx, config = ct.c_void_p(), (ct.c_int * 4)(-1)
                result = table.init(ct.byref(ctx), 1, config, None, None)
                if result:
                    failed.append(result)
                else:
                    table.finalize(ctx)

        thread = threading.Thread(target=churn, args=(cycles,))
        thread.start()
        while thread.is_alive():
            self.fork_sleeper()
            thread.join(0.005)
        churn(1)  # with all the sleepers there
        held = 0
        for pid in self.forked:
            folder = pathlib.Path(f"/proc/{pid}/fd")
            links = [str(entry.readlink()) for entry in folder.iterdir()]
            held += any("bpf" in link for link in links)
        return [len(failed), held]

    def threads(self) -> list[list[Any]]:
        """Name and allowed processors of each thread of this process."""
        found = []
        for task in pathlib.Path("/proc/self/task").iterdir():
            tid = int(task.name)
            found.append([(task / "comm").read_text().strip(), sorted(os.sched_getaffinity(tid))])
        return found

    def each(self, name: str, values: list[int]) -> None:
        """The command with one value after the other."""
        for value in values:
            getattr(self, name)(value)

    def settled(self) -> list[int]:
        """resources(), once they have not grown less for half a second: what is closed lingers for
        some tens of milliseconds, and announces its end to nobody."""
        found, same = self.resources(), 0
        while same < 10:
            time.sleep(0.05)
            now = self.resources()
            same = same + 1 if now[:2] == found[:2] else 0
            found = now
        return found

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
        except Exception as error:  # everything goes to the test
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    for pid in commands.forked:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
