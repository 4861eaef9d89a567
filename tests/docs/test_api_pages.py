"""Pages of the API."""

from __future__ import annotations

from pathlib import Path

from api_pages import public_names, public_page, room_page, rooms


def test_rooms_are_folders_with_their_modules() -> None:
    names = ("zoo", "zoo.runs", "zoo.runs.folder", "zoo.files", "zoo.cli.__main__")
    files = {name: Path("__main__.py" if "__main__" in name else "x.py") for name in names}
    files |= {"zoo": Path("zoo/__init__.py"), "zoo.runs": Path("zoo/runs/__init__.py")}
    assert rooms(files) == {"zoo.runs": ["zoo.runs", "zoo.runs.folder"], "zoo": ["zoo.files"]}


def test_public_names_are_those_of_all() -> None:
    assert public_names('X = 1\n__all__ = ["a", "B"]\n') == ["a", "B"]
    assert public_names("X = 1\n") == []


def test_the_directive_fits_the_kind_of_name() -> None:
    page = public_page("vla_gym", ["make_vec", "BadValue", "VLAVectorEnv", "__version__"])
    assert ".. autofunction:: vla_gym.make_vec" in page
    assert ".. autoexception:: vla_gym.BadValue" in page
    assert ".. autoclass:: vla_gym.VLAVectorEnv" in page
    assert ".. py:data:: vla_gym.__version__\n   :value: '" in page


def test_what_a_package_page_tells_is_only_named_in_its_room() -> None:
    page = room_page("zoo.algorithms", ["zoo.algorithms", "zoo.algorithms.ppo"], {"zoo.algorithms.ppo": ["zoo.PPO"]})
    assert ":exclude-members: PPO\n" in page
    assert ":py:obj:`zoo.PPO`" in page
