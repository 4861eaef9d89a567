from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from zoo.cli.main import COMMANDS, main


def completions(script: Path, *words: str) -> set[str]:
    """What bash offers for the last of the words, with the script sourced."""
    line = " ".join(f"'{word}'" for word in words)
    code = f"""source {script}
COMP_WORDS=({line}) COMP_CWORD={len(words) - 1}
"$(complete -p vla-zoo | sed -E 's/.*-F ([^ ]+).*/\\1/')"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    return set(subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_bash_completes_commands_flags_environments_and_paths(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = cwd / "vla-zoo"
    script.write_text(capsys.readouterr().out)
    (cwd / "logs").mkdir()
    (cwd / "logo.mp4").touch()
    assert completions(script, "vla-zoo", "") == set(COMMANDS)
    assert completions(script, "vla-zoo", "tra") == {"train"}
    assert completions(script, "vla-zoo", "train", "--eval-ep") == {"--eval-episodes"}
    assert completions(script, "vla-zoo", "sft", "--env", "Toy") == {"Toy-Reach"}
    assert completions(script, "vla-zoo", "enjoy", "-i", "lo") == {"logs"}
    assert completions(script, "vla-zoo", "enjoy", "-o", "lo") == {"logs", "logo.mp4"}


def test_a_shell_without_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 2
    assert "invalid choice: 'fish' (choose from" in capsys.readouterr().err
