"""Pages in a headless browser: how far each can be scrolled sideways, at many widths."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

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
      const root = frame.contentDocument.documentElement, over = root.scrollWidth - width;
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
