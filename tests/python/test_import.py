# SPDX-License-Identifier: Apache-2.0
"""F74, F80: an import that cannot work says why, and what to do."""

import sysconfig
from pathlib import Path

import pytest
from kit import run_python

import chm
from chm import _ffi


def test_f80_an_old_backend_first_on_the_path(tmp_path) -> None:
    (tmp_path / "_cffi_backend.py").write_text("__version__ = '1.11.5'\n")
    result = run_python("import chm", tmp_path)
    assert result.returncode != 0
    message = result.stderr.splitlines()[-1]
    for part in (
        "1.11.5",
        str(tmp_path),
        _ffi._cffi_package(),
        "pip install --force-reinstall cffi",
    ):
        assert part in message


def test_f80_the_declared_minimum_is_the_tested_one() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    assert f'"cffi>={_ffi.CFFI_MIN[0]}.{_ffi.CFFI_MIN[1]}"' in project.read_text()


def test_f80_a_backend_that_does_not_load(tmp_path) -> None:
    (tmp_path / "_cffi_backend.py").write_text("raise ImportError('wrong ELF class')\n")
    result = run_python("import chm", tmp_path)
    assert "wrong ELF class" in result.stderr.splitlines()[-1]
    assert "pip install" in result.stderr.splitlines()[-1]


def test_f74_free_threaded_builds_are_refused_with_a_sentence() -> None:
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.fail("chm imported on a free-threaded build")
    result = run_python(
        "import sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1\nimport chm"
    )
    assert "free-threaded" in result.stderr.splitlines()[-1]


def test_only_one_module_imports_the_extension() -> None:
    root = Path(chm.__file__).parent
    importers = [p.name for p in root.rglob("*.py") if "import _core" in p.read_text()]
    assert importers == ["_ffi.py"]


def test_c_names_do_not_leak() -> None:
    assert not {"ffi", "lib"} & set(chm.__all__)
    assert all(hasattr(chm, name) for name in chm.__all__)
