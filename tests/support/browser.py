"""A headless Chromium that is controlled through two pipes, using only the standard library.

It speaks the Chrome DevTools Protocol (https://chromedevtools.github.io/devtools-protocol): JSON messages,
each terminated by a NUL byte, on file descriptors 3 and 4 of the browser.
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
SECONDS = 60  # for an answer
ARROWS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, **ARROWS}  # with their numbers
MIDDLE = """(() => {
  const element = document.querySelector(%s);
  element.scrollIntoView({block: "center"});
  const box = element.getBoundingClientRect();
  return {x: box.x + box.width / 2, y: box.y + box.height / 2};
})()"""


def find_chromium():
    """Returns the path of a Chromium from CHROMIUM in the environment or from the PATH, or None."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page of a browser.

    Attributes:
      problems: uncaught errors, console messages above "info", and requests to a network.
    """

    def __init__(self, reader, writer):
        self._reader, self._writer, self._number, self._buffer = reader, writer, 0, b""
        self.problems = []
        self._session = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, url):
        """Opens a URL and waits until it is loaded."""
        self._call("Page.navigate", url="about:blank")
        self._call("Page.navigate", url=url)
        deadline = time.monotonic() + SECONDS
        while self.evaluate("location.href + document.readyState") in ("", "about:blankcomplete") or (
            self.evaluate("document.readyState") != "complete"
        ):
            assert time.monotonic() < deadline, f"{url} does not load"
            time.sleep(0.01)

    def evaluate(self, expression):
        """Returns the value of a JavaScript expression as JSON."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key):
        """Presses and releases a key of `KEYS`."""
        text = {"text": {"Enter": "\r", " ": " "}[key]} if key in ("Enter", " ") else {}
        options = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        self._call("Input.dispatchKeyEvent", type="keyDown", **options, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", **options)

    def insert(self, text):
        """Types a text into the element that has the focus."""
        self._call("Input.insertText", text=text)

    def point(self, selector, *, click=False):
        """Moves the mouse to the middle of an element, and optionally clicks."""
        box = self.evaluate(MIDDLE % json.dumps(selector))
        self._call("Input.dispatchMouseEvent", type="mouseMoved", **box)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self._call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **box)

    def tap(self, selector):
        """Touches the middle of an element with a finger."""
        box = self.evaluate(MIDDLE % json.dumps(selector))
        self._call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[box])
        self._call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def choose_files(self, selector, *paths):
        """Chooses files in an input element."""
        root = self._call("DOM.getDocument")["root"]["nodeId"]
        node = self._call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self._call("DOM.setFileInputFiles", nodeId=node, files=list(paths))

    def drop_files(self, *paths):
        """Drops files on the page."""
        data = {"items": [], "files": list(paths), "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self._call("Input.dispatchDragEvent", type=kind, x=100, y=100, data=data)

    def list_controls(self):
        """Returns (role, name) of everything that a screen reader finds on the page."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        visible = [node for node in nodes if not node["ignored"]]
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in visible]

    def set_width(self, width, height=900, *, touch=False, scale=1):
        """Sets the size of the window in CSS pixels, and whether it is a touch screen such as a phone.

        `scale` is the number of pixels of a screenshot in a CSS pixel.
        """
        size = {"width": width, "height": height}
        self._call("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=scale, mobile=touch)
        self._call("Emulation.setTouchEmulationEnabled", enabled=touch)

    def prefer(self, theme):
        """Sets the theme of the system, "light" or "dark"."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def screenshot(self):
        """Returns the visible part of the page as the bytes of a PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot")["data"])

    def print_pdf(self):
        """Returns the printed page as the bytes of a PDF."""
        return base64.b64decode(self._call("Page.printToPDF", printBackground=False)["data"])

    def _call(self, method, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._notice(answer)

    def _receive(self):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reader], [], [], SECONDS)
            assert ready, "Chromium does not answer"
            part = os.read(self._reader, 1 << 16)
            assert part, "Chromium has ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _notice(self, event):
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(params["exceptionDetails"])
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(params)
        if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"])
        if method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(
            ("file:", "data:", "about:")
        ):
            self.problems.append(params["request"]["url"])


@contextlib.contextmanager
def open_browser(chromium, folder):
    """Yields a `Page` of a new browser whose profile is in `folder`."""
    to_browser, writer = os.pipe()
    reader, from_browser = os.pipe()

    ends = [
        fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser, from_browser)
    ]  # not 3 or 4 themselves
    command = [chromium, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(  # bash puts them in place: Python would fork, which JAX warns of
        ["bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "bash", *command],
        pass_fds=ends,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for end in (to_browser, from_browser, *ends):
        os.close(end)
    try:
        yield Page(reader, writer)
    finally:
        # All its processes end before it does: none writes into the folder any more.
        os.write(writer, b'{"id": 0, "method": "Browser.close"}\0')
        process.wait(SECONDS)
        os.close(reader)
        os.close(writer)


def text_of(page, name):
    """Returns the text of the element with this id."""
    return page.evaluate(f"document.getElementById('{name}').textContent")


def texts_of(page, selector):
    """Returns the texts of all elements that match the selector."""
    return page.evaluate(f"[...document.querySelectorAll({selector!r})].map((e) => e.textContent)")
