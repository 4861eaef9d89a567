"""Meta-World on bare MuJoCo."""

from importlib import import_module

_MODULES = {"MetaWorldSimulator": "simulator"}


# Loaded on first use: these load a simulator, which only workers may.
def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
