"""Every notebook runs from its first cell to its last, and is kept with what it showed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_as_it_ran_from_top_to_bottom(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert {output.output_type for output in outputs(notebook)} <= {"stream", "display_data", "execute_result"}
    assert not [output for output in outputs(notebook) if output.get("name") == "stderr"], "warnings and paths"
    assert path.stat().st_size < 300_000


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning:(jupyter_client|zmq|tornado|asyncio).*")
def test_toy_reach_is_learned_in_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(ROOT / "notebooks" / "toy_reach.ipynb", as_version=4)
    client = NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    printed = "".join(output.text for output in outputs(notebook) if output.output_type == "stream")
    rates = [int(rate) for rate in re.findall(r"steps: (\d+)% of 60 start states solved", printed)]
    assert len(rates) == 3
    assert rates[-1] >= 80
    shown = [output.data for output in outputs(notebook) if "data" in output]
    assert any("data:video/mp4;base64" in data.get("text/html", "") for data in shown)
    assert sum("image/png" in data for data in shown) == 2
    assert (tmp_path / "toy-reach" / "model.safetensors").is_file()
