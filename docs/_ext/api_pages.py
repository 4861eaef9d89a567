"""One page for each package's public names and one for each room: all its modules, from their docstrings."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

HOSTED = ("vla_gym.plugins.lerobot", "vla_gym.plugins.vla_eval")
"""Modules that import the program which they are for: `docs/comparison.md` tells of them."""
OPTIONS = "   :members:\n   :undoc-members:\n   :show-inheritance:\n"


def pages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield (name, reStructuredText) of every page of the API."""
    sys.path.insert(0, str(root / "scripts"))
    from import_graph import PACKAGES, module_files

    files = {name: path for name, path in module_files(root).items() if name not in HOSTED}
    public = {package: public_names(files[package].read_text(encoding="utf-8")) for package in PACKAGES}
    elsewhere: dict[str, list[str]] = {}
    for package, names in public.items():
        for name in names:
            home = getattr(getattr(import_module(package), name), "__module__", None)
            elsewhere.setdefault(home or package, []).append(f"{package}.{name}")
        yield f"api/{package}.rst", public_page(package, names)
    for room, modules in rooms(files).items():
        yield f"api/modules/{room}.rst", room_page(room, modules, elsewhere)


def rooms(files: Mapping[str, Path]) -> dict[str, list[str]]:
    """Return folder, dotted -> its modules in order; `__init__` of a package and `__main__` have no entry."""
    found: dict[str, list[str]] = {}
    for name, path in sorted(files.items()):
        folder = name if path.name == "__init__.py" else name.rpartition(".")[0]
        if path.name != "__main__.py" and "." in name:
            found.setdefault(folder, []).append(name)
    return found


def public_names(source: str) -> list[str]:
    """Return `__all__` of a module's text."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def public_page(package: str, names: Sequence[str]) -> str:
    """Return the page of what `import package` gives; `package` is imported by now."""
    text = [heading(package, "="), import_module(package).__doc__ or "", ""]
    for name in names:
        member = getattr(import_module(package), name)
        kind = autodoc_kind(member)
        if kind == "data":
            text.append(f".. py:data:: {package}.{name}\n{value_of(package, name, member)}\n")
        else:
            text.append(f".. auto{kind}:: {package}.{name}\n{OPTIONS if kind in ('class', 'exception') else ''}")
    return "\n".join(text)


def autodoc_kind(member: object) -> str:
    """Return the word for a member that autodoc's directives end in."""
    if isinstance(member, type):
        return "exception" if issubclass(member, BaseException) else "class"
    return "function" if callable(member) else "data"


def value_of(package: str, name: str, member: object) -> str:
    """Return the rest of a value's entry: where below the package it is written, or the value itself."""
    for module in sorted(module for module in sys.modules if module.startswith(f"{package}.")):
        if vars(sys.modules[module]).get(name) is member:
            return f"\n   :py:obj:`{module}.{name}`\n"
    return f"   :value: {member!r}\n"


def room_page(room: str, modules: Sequence[str], elsewhere: Mapping[str, Sequence[str]]) -> str:
    """Return the page of one folder; what stands on a package's own page is named, not told again."""
    text = [heading(room, "=")]
    for module in modules:
        if module != room:
            text += [heading(module.rpartition(".")[2], "-")]
        public = elsewhere.get(module, ())
        without = f"   :exclude-members: {', '.join(name.rpartition('.')[2] for name in public)}\n" if public else ""
        text += [f".. automodule:: {module}\n{OPTIONS}{without}"]
        if public:
            text += [f"On its package's own page: {', '.join(f':py:obj:`{name}`' for name in public)}.\n"]
    return "\n".join(text)


def heading(title: str, line: str) -> str:
    """Return a heading of reStructuredText."""
    return f"{title}\n{line * len(title)}\n"
