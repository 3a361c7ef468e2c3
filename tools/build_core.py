# SPDX-License-Identifier: Apache-2.0
"""Describes the extension chm._core to setuptools (named in setup.py).

The C core is compiled into the extension, with csrc/chm.h as the declarations that Python sees.
CHM_SAN=address or CHM_SAN=thread in the environment builds it with sanitizers.
"""

import os
import re
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


# What Python uses besides chm.h, as csrc/host/gate.h and binding.h declare it.
BINDING = """
struct chm_gate;
struct chm_gate *chm_gate_new(int one_at_a_time);
void chm_gate_free(struct chm_gate *g);
int chm_gate_enter(struct chm_gate *g);
void chm_gate_leave(struct chm_gate *g);
void chm_gate_shut(struct chm_gate *g, int error);
uint32_t chm_gate_inside(struct chm_gate *g);
"""
OFTEN = """
uint64_t chm_binding_issue(chm_dev *dev, uint64_t addr, uint64_t len);
int chm_binding_issue_many(chm_dev *dev, struct chm_issue *items, uint32_t n,
                           const struct chm_issue_options *opts, uint64_t *reqs, int32_t *status);
"""
INCLUDES = '#include "chm.h"\n#include "host/binding.h"\n#include "host/gate.h"\n'


def gated(header: str) -> tuple[str, str]:
    """Declarations and code of ``gated_NAME(gate, ...)`` for every chm_NAME that takes a handle.

    Going in, the call and leaving are one call from Python, so that no Python code, of a finaliser
    or of a signal handler, ever runs inside. A store is closed while its device stays open, so its
    calls go through a gate of its own as well: ``gated_NAME(gate, own, ...)``.
    """
    bare = re.sub(r"/\*.*?\*/", " ", header, flags=re.DOTALL)
    found = re.findall(
        r"^(u?int(?:\d+_t)?) chm_(\w+)\((chm_(dev|stream|space|store) \*[^)]*)\);",
        bare,
        re.MULTILINE,
    )
    declared, code = [], []
    for result, name, params, kind in found:
        if name == "close":
            continue
        words = " ".join(params.split())
        args = ", ".join(re.findall(r"(\w+)(?:,|$)", words))
        gates = ["own", "gate"] if kind == "store" and name != "store_close" else ["gate"]
        takes = ", ".join(f"struct chm_gate *{gate}" for gate in reversed(gates))
        head = f"{result} gated_{name}({takes}, {words})"
        declared.append(f"{head};\n")
        body = f"rc = chm_{name}({args});\n"
        for gate in reversed(gates):
            body = (
                f"rc = ({result})chm_gate_enter({gate});\n    if (rc == 0) {{\n"
                f"    {body}    chm_gate_leave({gate});\n    }}\n"
            )
        code.append(f"static {head}\n{{\n    {result} rc;\n    {body}    return rc;\n}}\n")
    return "".join(declared), "".join(code)


def describe() -> cffi.FFI:
    check_versions()
    sanitizer = os.environ.get("CHM_SAN", "")
    sanitize = FLAGS[f"CHM_SAN_{sanitizer}"] if sanitizer else []
    builder = cffi.FFI()
    public = declarations("csrc/chm.h")
    declared, code = gated(public + OFTEN)
    builder.cdef(public + BINDING + declared)
    builder.set_source(
        "chm._core",
        INCLUDES + code,
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
