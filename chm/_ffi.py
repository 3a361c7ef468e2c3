# SPDX-License-Identifier: Apache-2.0
"""The one importer of the C extension, and the few helpers that need nothing but it.

``ffi`` and ``lib`` never leave the package: everything public speaks Python types.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sysconfig
from typing import Any

CFFI_MIN = (1, 16)
"""Oldest cffi backend the extension is tested with; pyproject.toml says the same."""


def _refuse_free_threaded() -> None:
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise ImportError(
            "chm does not support free-threaded builds of Python: its extension is built for the "
            "stable ABI, which they do not have. Use the usual build of this Python version."
        )


def _package_version() -> str:
    try:
        return importlib.metadata.version("cffi")
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def _cffi_package() -> str:
    """Version and place of the cffi package, in words."""
    spec = importlib.util.find_spec("cffi")
    if spec is None:
        return "no cffi package is installed"
    return f"the cffi package is {_package_version()}, at {spec.origin}"


def _belong_together(backend: Any) -> bool:
    return getattr(backend, "__version__", None) == _package_version()


def _clash(backend: Any, reason: str) -> ImportError:
    version = getattr(backend, "__version__", "of unknown version")
    place = getattr(backend, "__file__", None) or "(built in)"
    return ImportError(
        f"chm cannot use this cffi: {reason}. The _cffi_backend module is {version}, at {place}; "
        f"{_cffi_package()}. Both must be {'.'.join(map(str, CFFI_MIN))} or newer and belong "
        "together: run `python -m pip install --force-reinstall cffi` in this environment, and "
        "look for an older copy earlier on sys.path or PYTHONPATH."
    )


def check_backend(backend: Any) -> None:
    """Refuse a cffi backend that is too old, naming both halves of cffi and where they are."""
    parts = str(getattr(backend, "__version__", "0")).split(".")
    version = tuple(int(part) if part.isdigit() else 0 for part in parts[:2])
    if version < CFFI_MIN:
        raise _clash(backend, "its backend is too old")


def _load() -> tuple[Any, Any]:
    _refuse_free_threaded()
    try:
        import _cffi_backend
    except ImportError as error:
        raise ImportError(
            f"chm needs cffi, and its backend does not load ({error}); {_cffi_package()}. "
            "Run `python -m pip install --force-reinstall cffi` in this environment."
        ) from error
    check_backend(_cffi_backend)
    if importlib.util.find_spec("chm._core") is None:
        raise ImportError(
            "the C extension chm._core is not built: run `python -m pip install -e .` in the "
            "checkout, or install the wheel"
        )
    try:
        from chm import _core
    except ImportError as error:
        if _belong_together(_cffi_backend):
            raise ImportError(
                f"the C extension chm._core does not load ({error}); build it again: "
                "`python -m pip install -e .` in the checkout"
            ) from error
        raise _clash(_cffi_backend, f"the extension does not load with it ({error})") from error
    return _core.ffi, _core.lib


ffi, lib = _load()

NULL = ffi.NULL
PAGE: int = lib.CHM_PAGE_BYTES


def field_names(ctype: str) -> list[str]:
    """Names of the members of a C struct, in order."""
    return [name for name, _ in ffi.typeof(ctype).fields]


def text(value: Any) -> str:
    """A C string as str."""
    return str(ffi.string(value).decode("utf-8", "replace"))
