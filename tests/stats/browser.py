# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium in a namespace, driven over the pipe of the DevTools protocol."""

import json
import os
import select
import subprocess
from pathlib import Path
from typing import Any

from conftest_stats import tool

from harp.closing import Closing
from harp.lab import Host

WIDTH, HEIGHT = 1280, 2290
ANSWER_S = 60

# The panels and rows of the dashboard, once it is drawn.
PLACES = """
window.drawn.then(() => {
  const main = document.querySelector("main").getBoundingClientRect();
  const texts = (place, selector) =>
    [...place.querySelectorAll(selector)].map((e) => e.textContent);
  return [...document.querySelectorAll("main > h2, main > section")].map((place) => {
    const { x, y, width, height } = place.getBoundingClientRect();
    return {
      x, y, width, height,
      column: Math.round(24 * (x - main.x) / main.width),
      row: Math.round((y - main.y) / 38),
      title: place.matches("h2") ? place.textContent : texts(place, "h3")[0],
      text: place.innerText,
      errors: texts(place, ".error"),
      legend: texts(place, "li"),
      axis: texts(place, "svg text"),
      lines: [...place.querySelectorAll("svg path")].filter(
        (e) => getComputedStyle(e).stroke !== "none",
      ).length,
    };
  });
})
"""


class Browser(Closing):
    """A tab of Chromium. folder: for its profile and log."""

    def __init__(self, host: Host, folder: Path) -> None:
        # Chromium reads the pipe at descriptor 3 and writes at 4.
        wrapper = ["sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >&2', "sh"]
        command = [
            *wrapper,
            tool("chromium-headless-shell"),
            "--no-sandbox",  # Chromium requires it of root
            "--remote-debugging-pipe",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder / 'profile'}",
        ]
        self._log = folder / "chromium.log"
        with self._log.open("w") as log:
            self._process = host.popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        self._received = b""
        self._calls = 0
        self._events: list[dict[str, Any]] = []
        self._session = ""
        tab = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=tab, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call("Network.setCacheDisabled", cacheDisabled=True)  # tests change the files
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def close(self) -> None:
        """Chromium ends when the pipe is closed."""
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def view(self, url: str) -> dict[str, Any]:
        """Open a dashboard; return its panels and rows, its choices, and errors."""
        self._events.clear()
        self._call("Page.navigate", url=url)
        while all(event["method"] != "Page.loadEventFired" for event in self._events):
            self._events.append(self._message())
        places = self.value(PLACES) or []
        choices = self.value("[...document.querySelectorAll('option')].map((e) => e.textContent)")
        problems = [text for event in self._events if (text := _problem(event))]
        return {
            "places": places,
            "choices": choices,
            "problems": problems,
        }

    def value(self, expression: str) -> Any:
        """Evaluate an expression in the page; an exception becomes a problem."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            self._events.append({"method": "Runtime.exceptionThrown", "params": answer})
        return answer["result"].get("value")

    def _call(self, method: str, **params: Any) -> Any:
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._process.stdin.write(json.dumps(message) + "\0")
        self._process.stdin.flush()
        while (answer := self._message()).get("id") != self._calls:
            self._events.append(answer)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            fd = self._process.stdout.fileno()
            chunk = os.read(fd, 1 << 20) if select.select([fd], [], [], ANSWER_S)[0] else b""
            assert chunk, f"Chromium does not answer: {self._log.read_text()[-2000:]}"
            self._received += chunk
        first, _, self._received = self._received.partition(b"\0")
        return dict(json.loads(first))


def _problem(event: dict[str, Any]) -> str:
    """The text of an error or warning of the page's console; "" for other events."""
    params = event.get("params", {})
    match event.get("method"):
        case "Runtime.exceptionThrown":
            return str(params["exceptionDetails"].get("exception", {}).get("description"))
        case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning"):
            return " ".join(str(arg.get("description", arg.get("value"))) for arg in params["args"])
        case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
            return str(params["entry"]["text"])
    return ""
