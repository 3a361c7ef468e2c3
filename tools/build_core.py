# SPDX-License-Identifier: Apache-2.0
"""Describes the extension chm._core to setuptools (named in setup.py).

The C core is compiled into the extension, with csrc/chm.h as the declarations that Python sees.
CHM_SAN=address or CHM_SAN=thread in the environment builds it with sanitizers.
"""

import os
import subprocess
import sys
import sysconfig
from glob import glob

import cffi

PACKAGES = {
    "liburing": "liburing-dev (Debian, Ubuntu) or liburing-devel (Fedora)",
    "libxxhash": "libxxhash-dev (Debian, Ubuntu) or xxhash-devel (Fedora)",
}


def read_flags(path: str) -> dict[str, list[str]]:
    """The assignments of csrc/flags.mk."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().replace("\\\n", " ").splitlines()
    pairs = [line.split(" := ") for line in lines if line and not line.startswith("#")]
    return {name: words.split() for name, words in pairs}


def pkg_config(library: str, *args: str) -> list[str]:
    """Ask pkg-config about a library; if it is missing, exit with a line that names the package."""
    command = os.environ.get("PKG_CONFIG", "pkg-config")
    package = PACKAGES[library]
    try:
        run = subprocess.run([command, *args, library], capture_output=True, text=True)
    except FileNotFoundError:
        sys.exit(f"chm: {command} not found: install the package pkg-config and {package}")
    if run.returncode != 0:
        minimum = FLAGS["CHM_LIBURING_MIN" if library == "liburing" else "CHM_XXHASH_MIN"][0]
        sys.exit(f"chm: {library} {minimum} or newer not found: install {package}")
    return run.stdout.split()


def check_versions() -> None:
    """Both are there and new enough. Of xxhash only the header is used."""
    pkg_config("liburing", f"--atleast-version={FLAGS['CHM_LIBURING_MIN'][0]}")
    pkg_config("libxxhash", f"--atleast-version={FLAGS['CHM_XXHASH_MIN'][0]}")


def link_liburing() -> list[str]:
    """Linker arguments: the static library where there is one, so that a wheel carries it."""
    libdir = pkg_config("liburing", "--variable=libdir")
    archive = os.path.join(libdir[0], "liburing.a") if libdir else ""
    return [archive] if os.path.exists(archive) else pkg_config("liburing", "--libs")


def declarations(header: str) -> str:
    """The header as cffi wants it: without preprocessor lines."""
    with open(header, encoding="utf-8") as lines:
        return "".join(line for line in lines if not line.startswith("#"))


def describe() -> cffi.FFI:
    check_versions()
    sanitizer = os.environ.get("CHM_SAN", "")
    sanitize = FLAGS[f"CHM_SAN_{sanitizer}"] if sanitizer else []
    builder = cffi.FFI()
    builder.cdef(declarations("csrc/chm.h"))
    builder.set_source(
        "chm._core",
        '#include "chm.h"',
        sources=sorted(glob("csrc/*/*.c")),
        depends=[*glob("csrc/**/*.h", recursive=True), "csrc/flags.mk", "tools/build_core.py"],
        include_dirs=["csrc"],
        extra_compile_args=[
            *FLAGS["CHM_CFLAGS"],
            "-fvisibility=hidden",
            f"-ffile-prefix-map={sysconfig.get_path('include')}=python",  # no path of the machine
            f"-ffile-prefix-map={os.getcwd()}=.",  # that builds it in a wheel
            *pkg_config("liburing", "--cflags"),
            *pkg_config("libxxhash", "--cflags"),
            *sanitize,
        ],
        extra_link_args=[
            *link_liburing(),
            *FLAGS["CHM_LIBS"],
            "-Wl,--exclude-libs,ALL",  # liburing stays inside
            *sanitize,
        ],
        py_limited_api=True,
    )
    return builder


FLAGS = read_flags("csrc/flags.mk")
ffibuilder = describe()
