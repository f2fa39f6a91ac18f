"""A headless Chromium that is controlled over the DevTools protocol through a pipe."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
    "--no-first-run", "--disable-dev-shm-usage",
)  # fmt: skip
SECONDS = 60.0


def program() -> str | None:
    """Return the path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Page:
    """A page of the browser.

    Attributes:
        trouble: messages of its console, exceptions and failed loads.
        loaded: the address of each file that it has loaded.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._data, self._number, self._session = b"", 0, ""
        self.trouble: list[str] = []
        self.loaded: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, path: Path, width: int, media: str = "screen") -> None:
        """Open a file in a window of the given size in pixels, without any network."""
        self.call("Network.emulateNetworkConditions", offline=True, latency=0,
                  downloadThroughput=0, uploadThroughput=0)  # fmt: skip
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=800,
                  deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        self.call("Emulation.setEmulatedMedia", media=media)
        self.call("Page.navigate", url=path.as_uri())
        while self.value("document.readyState") != "complete":
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression on the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def pdf(self) -> bytes:
        """Return the page as printed on A4."""
        size = {"paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": True}
        answer = self.call("Page.printToPDF", printBackground=False, **size)
        return base64.b64decode(answer["data"])

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Send a command of the protocol and return the response."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": arguments}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]  # type: ignore[no-any-return]
            self._take(found.get("method", ""), found.get("params", {}))

    def _take(self, event: str, found: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.loaded.append(found["request"]["url"])
        elif event in (
            "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded",
            "Network.loadingFailed",
        ):  # fmt: skip
            self.trouble.append(json.dumps(found))

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._data:
            ready, _, _ = select.select([self._answers], [], [], deadline - time.monotonic())
            assert ready, "the browser does not answer"
            data = os.read(self._answers, 1 << 20)
            assert data, "the browser has ended"
            self._data += data
        text, _, self._data = self._data.partition(b"\0")
        return json.loads(text)  # type: ignore[no-any-return]


@contextmanager
def browser(path: str, folder: Path) -> Iterator[Page]:
    """Yield a page of a browser that keeps its files in a folder."""
    read_commands, commands = os.pipe()
    answers, write_answers = os.pipe()

    # the protocol uses descriptors 3 and 4; `pipe` may return these numbers for any of its ends
    def pipes() -> None:
        high = [os.dup(one) for one in (read_commands, write_answers)]
        high = [os.dup2(one, 100 + number) for number, one in enumerate(high)]
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            [path, *OPTIONS, f"--user-data-dir={folder}"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=pipes, close_fds=False,
            env={**os.environ, "HOME": str(folder)},
        )  # fmt: skip
    os.close(read_commands)
    os.close(write_answers)
    try:
        page = Page(commands, answers)
        yield page
        # this ends all processes of the browser, so that none writes to the folder any more
        page.call("Browser.close")
        process.wait(SECONDS)
    finally:
        process.kill()
        process.wait(SECONDS)
        os.close(commands)
        os.close(answers)
