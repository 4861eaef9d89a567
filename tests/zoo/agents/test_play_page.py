"""The play page in a browser: buttons are clicked and words typed as people do, and what is shown follows."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.browser import BROWSER, Page, browser
from tests.zoo.serving.conftest import Serving, declaration, serving
from tests.zoo.stand_ins import way_to_what_is_told
from zoo.serving.declaration import Declaration

__all__ = ["declaration", "serving"]
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium"),
]
WORDS = "#instruction textarea"
ROOT = Path(__file__).parents[3]


@contextmanager
def played(folder: Path, *flags: str) -> Iterator[Page]:
    """Run the command in `folder`, open its page, and end it as Ctrl-C does."""
    pytest.importorskip("gradio")
    command = [sys.executable, "-P", "-m", "zoo.play", *flags, "--device", "cpu", "--num-threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout)
            address = next(found[1] for line in lines if (found := re.search(r"play at (\S+)", line)))
            with browser() as page:
                page.open(address)
                page.wait("document.querySelector('#robot img')")
                # Gradio shows its components before it hears their buttons; its load event comes after both.
                page.wait("performance.getEntriesByType('resource').some(e => e.name.includes('/queue/data'))")
                yield page
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 0


def images(page: Page) -> list[str]:
    return list(page.run("[...document.querySelectorAll('#robot figure img')].map(e => e.src)"))


def shown(page: Page, **values: object) -> None:
    """Wait until the view says this step and this outcome."""
    for name, value in values.items():
        page.wait(f"document.querySelector('#robot [data-{name}]').dataset.{name} === '{value}'")


@pytest.mark.slow
def test_a_person_plays(serving: Serving, declaration: Declaration, tmp_path: Path) -> None:
    """The policy, which goes to the block whose colour it is told, is served at an address."""
    with (
        serving(
            lambda requests: [way_to_what_is_told(request.observation) for request in requests],
            replace(declaration, image_size=32, chunk=2),
        ) as (_, port),
        played(tmp_path, "--policy", f"ws://127.0.0.1:{port}") as page,
    ):
        play_toy(page, tmp_path)


def play_toy(page: Page, folder: Path) -> None:
    shown(page, step=0, outcome="under way")
    begun = images(page)
    assert len(begun) == 2
    page.click("#step")
    shown(page, step=2)
    assert all(now != before for now, before in zip(images(page), begun, strict=True))

    page.type(WORDS, "please touch the red one")
    page.press_enter()
    shown(page, outcome="solved")
    assert "Told: please touch the red one" in page.text()
    assert "Task: reach the red block" in page.text()
    page.click("#save-mp4")
    page.wait("document.querySelector('video')")
    (video,) = folder.glob("play-*-Toy-Reach.mp4")
    assert video.stat().st_size > 1000

    page.click("#reset")
    shown(page, step=0, outcome="under way")
    assert images(page) == begun
    page.type(WORDS, "go to the blue one")
    page.click("#play")
    shown(page, outcome="failed")

    page.click("#new-seed")
    shown(page, step=0, outcome="under way")
    page.run("new Promise(done => setTimeout(done, 300))")
    assert "under way" in page.text()  # the end of playing does not show its last view once more
    assert images(page) != begun
    page.click("#play")
    page.wait("document.querySelector('#robot [data-step]').dataset.step > 0")
    page.click("#pause")
    page.run("new Promise(done => setTimeout(done, 300))")
    stopped = images(page)
    page.run("new Promise(done => setTimeout(done, 300))")
    assert images(page) == stopped

    page.type("input[role=combobox]", "blue")
    page.press_enter()
    page.wait("document.body.innerText.includes('Task: reach the blue block')")
    page.type(WORDS, "go to the \N{ROBOT FACE}")
    page.press_enter()
    page.wait("document.body.innerText.includes('allowed are printable ASCII')")
    names = page.run("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert [name for name in names if not name.startswith("http://127.0.0.1:")] == []


@pytest.mark.thorough
@pytest.mark.sim
@pytest.mark.slow
def test_a_trained_agent_follows_other_words(tmp_path: Path) -> None:
    with played(tmp_path, "-i", str(ROOT / "agents" / "sft" / "LIBERO-Goal")) as page:
        page.type(WORDS, "pull out the cabinet's middle drawer")
        page.press_enter()
        page.wait("document.querySelector('[data-outcome=solved]')", 120)
