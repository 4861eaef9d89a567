"""Pages in a headless browser: clicked and typed into as people do, and how far each can be scrolled sideways."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
HARNESS = """<!doctype html><body style="margin:0"><iframe id="page" style="border:0;height:800px"></iframe><script>
(async () => {
  const frame = document.getElementById("page"), found = {};
  for (const page of PAGES) {
    frame.style.width = "1200px";
    await new Promise(done => { frame.onload = done; frame.src = "/" + page; });
    for (const width of WIDTHS) {
      frame.style.width = width + "px";
      const root = frame.contentDocument.documentElement, text = root.querySelector(".content") ?? root;
      const over = Math.max(root.scrollWidth - width, text.scrollWidth - text.clientWidth);
      if (over > 0) {
        const sticking = [...frame.contentDocument.body.querySelectorAll("*")].filter(
          one => one.getBoundingClientRect().right > width + 0.5).map(one => one.tagName + "." + one.className);
        (found[page] ??= []).push([width, over, sticking.slice(-1)[0]]);
      }
    }
  }
  await fetch("/found", {method: "POST", body: JSON.stringify(found)});
})();
</script>"""
"""Shows each page in a frame of each width, whose media queries see that width, and sends back what sticks out."""


def sideways(site: Path, pages: Sequence[str], widths: Sequence[int], profile: Path, seconds: float = 300) -> dict:
    """Return page -> [width, pixels too many, an element that sticks out] where a page can be scrolled sideways."""
    harness = HARNESS.replace("PAGES", json.dumps(list(pages))).replace("WIDTHS", json.dumps(list(widths)))
    found: list[bytes] = []
    done = threading.Event()

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/harness":
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(harness.encode())
            else:
                super().do_GET()

        def do_POST(self) -> None:
            found.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()
            done.set()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/harness"
        assert BROWSER is not None
        command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", "--window-size=2000,900", address]
        # Without a remote port a headless browser leaves once the page is loaded; the harness goes on after that.
        browser = subprocess.Popen([*command, "--remote-debugging-port=0"], stderr=subprocess.DEVNULL)
        try:
            assert done.wait(seconds), "the browser has not answered"
        finally:
            browser.kill()
            browser.wait()
            server.shutdown()
    return dict(json.loads(found[0]))


class Page:
    """A tab that is driven over the DevTools protocol: clicks and typed text are a user's."""

    def __init__(self, connection: ClientConnection) -> None:
        self._ws, self._calls = connection, 0

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol."""
        self._calls += 1
        self._ws.send(json.dumps({"id": self._calls, "method": method, "params": params}))
        while (answer := json.loads(self._ws.recv(timeout=30))).get("id") != self._calls:
            pass
        assert "error" not in answer, answer
        return dict(answer["result"])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script: str, seconds: float = 20.0) -> Any:
        """The value of an expression once it is true; True for an element."""
        end = time.monotonic() + seconds
        tried = (
            f"(() => {{ try {{ const v = {script}; return v instanceof Node || v }} catch (e) {{ return null }} }})()"
        )
        while not (value := self.run(tried)):
            assert time.monotonic() < end, f"{script} is not so after {seconds} s: {self.text()[:2000]}"
            time.sleep(0.02)
        return value

    def text(self) -> str:
        return str(self.run("document.body.innerText"))

    def click(self, selector: str) -> None:
        """Click the middle of the first such element, once it stands still: a loading image moves what is below."""
        self.wait(f"document.querySelector({selector!r})")
        place = (
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2] })()"
        )
        before, now = None, self.run(place)
        while now != before:
            time.sleep(0.05)
            before, now = now, self.run(place)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=now[0], y=now[1], button="left", clickCount=1)

    def type(self, selector: str, text: str) -> None:
        """Replace the text of a field."""
        self.click(selector)
        self.run(f"document.querySelector({selector!r}).select()")
        self.call("Input.insertText", text=text)

    def press_enter(self) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
            )

    def screenshot(self, path: Path, width: int = 1280, height: int = 800) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def browser() -> Iterator[Page]:
    """A browser with an empty page, and nothing kept of earlier ones."""
    assert BROWSER is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [BROWSER, *FLAGS, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                lines = iter(process.stderr)
                address = next(found[1] for line in lines if (found := re.search(r"listening on (ws://\S+)", line)))
                host = re.match(r"ws://([^/]+)/", address)[1]  # type: ignore[index]
                with connect(address) as ws:
                    tab = Page(ws).call("Target.createTarget", url="about:blank")["targetId"]
                    with connect(f"ws://{host}/devtools/page/{tab}", max_size=None) as page:
                        yield Page(page)
            finally:
                process.terminate()
                process.wait(timeout=20)
