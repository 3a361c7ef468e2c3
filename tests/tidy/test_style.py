# SPDX-License-Identifier: Apache-2.0
"""The house style as a test, for what formatters and linters do not know.

Each rule is a function from a file to complaints; each is tried on text that breaks it, so that a
rule which finds nothing is known to look.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]

# A file may include headers of its own layer and of those before it, and chm.h.
C_LAYERS = ["util", "media", "fw", "host", "store"]

# Where files, threads, memory mappings and other system calls are, and what for. Everything else is
# arithmetic on memory, and includes nothing but PURE_HEADERS.
SYSTEM_MODULES = {
    "fw/memory": "the memory of window and write buffer, and the helper that touches it",
    "host/cells": "event descriptors",
    "host/door": "the device thread",
    "host/format": "the random id of a new device",
    "host/futex": "sleeping and waking",
    "host/thread": "the device thread",
    "media/backing": "opening files",
    "media/backing_lock": "locking files",
    "media/caps": "probing files",
    "media/clock": "the clock",
    "media/media_sync": "I/O",
    "media/media_threads": "I/O",
    "media/media_uring": "I/O",
    "media/posix_io": "I/O",
    "media/sim_image": "memory that is used only when touched",
    "media/thread": "starting threads",
    "media/trace_file": "the trace file",
    "media/uring_setup": "probing io_uring",
    "media/wake": "event descriptors",
    "store/device": "memory that is used only when touched",
    "store/extents": "memory that is used only when touched",
    "store/jobs": "event descriptors",
    "store/kv_format": "the random id of a new store",
    "store/kv_open": "event descriptors",
    "store/peek": "the file that other processes publish",
    "store/publish": "the file that other processes read",
    "store/space": "its lock, and memory that is used only when touched",
    "store/sum": "the header of xxhash",
    "store/sum_wide": "the header of xxhash",
    "store/worker": "the worker thread",
    "util/util": "the message of a broken invariant",
}
# Real time is read in one place, and only real media ask for it: a simulation that looked at it
# could not be replayed.
CLOCK_READER = "media/clock"
CLOCK_CALLS = r"\b(clock_gettime|gettimeofday|timespec_get|time|clock|__rdtsc|_rdtsc)\s*\("
CLOCK_USERS = {
    "fw/memory",  # how long touching the memory took
    "host/gate",  # how long to wait for another thread
    "host/futex",
    "media/clock",
    "media/media_sync",
    "media/media_threads",
    "media/media_uring",
    "media/wake",
}
PURE_HEADERS = {
    "endian.h",
    "errno.h",
    "inttypes.h",
    "limits.h",
    "stdarg.h",
    "stdatomic.h",
    "stdbool.h",
    "stddef.h",
    "stdint.h",
    "stdio.h",  # snprintf; what prints or opens is in IMPURE_CALLS
    "stdlib.h",
    "string.h",
}
IMPURE_CALLS = r"\b(f?printf|puts|fputs|perror|fopen|fdopen|exit|abort|getenv|rand|system)\s*\("

FUNCTION_MAX = 60
FILE_MAX = 600
TEST_FILE_MAX = 800
LINE_MAX = 100

# In brackets, so that this file does not match its own patterns.
BANNED = [
    r"\b[T]ODO\b",
    r"\b[F]IXME\b",
    r"\b[X]XX\b",
    r"/(w[o]rk|h[o]me|r[o]ot)/",
    r"\bp[y]pi\.org|python[h]osted|\bd[e]bian\.org|n[p]mjs\.",
    r"\b[C]EO\b|[s]teering repo",
    r"-m[a]rch=",
]


def tracked(*patterns: str) -> list[Path]:
    """Files that are, or could be, committed and match one of the patterns."""
    command = ["git", "ls-files", "-z", "-co", "--exclude-standard", "--", *patterns]
    try:
        run = subprocess.run(command, cwd=TOP, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git, or not a git checkout")
    return [TOP / name for name in sorted(set(run.stdout.split("\0"))) if (TOP / name).is_file()]


def name_of(path: Path) -> str:
    return str(path.relative_to(TOP))


def code_of(text: str) -> str:
    """C without comments and string contents; line numbers stay as they are."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found.group())

    return re.sub(r'/\*.*?\*/|//[^\n]*|"(\\.|[^"\\\n])*"', blank, text, flags=re.DOTALL)


# ------------------------------------------------------------------------------------ the rules


def include_complaints(name: str, text: str) -> Iterable[str]:
    """C includes point down the layers. name is relative to csrc."""
    layer = name.split("/")[0]
    for header in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):
        if header == "chm.h":
            continue
        other = header.split("/")[0] if "/" in header else layer
        if other not in C_LAYERS or C_LAYERS.index(other) > C_LAYERS.index(layer):
            yield f"{name} includes {header}: layers are {' < '.join(C_LAYERS)}"


def module_of(name: str) -> str:
    return name.rsplit(".", 1)[0]


def purity_complaints(name: str, text: str) -> Iterable[str]:
    """System calls are made in SYSTEM_MODULES."""
    if module_of(name) in SYSTEM_MODULES:
        return
    for header in re.findall(r"^#include <([^>]+)>", text, re.MULTILINE):
        if header not in PURE_HEADERS:
            yield f"{name} includes <{header}>, which is for SYSTEM_MODULES"
    for call in re.finditer(IMPURE_CALLS, code_of(text)):
        yield f"{name} calls {call.group(1)}"


def clock_complaints(name: str, text: str) -> Iterable[str]:
    code = code_of(text)
    if module_of(name) != CLOCK_READER:
        for call in re.finditer(CLOCK_CALLS, code):
            yield f"{name} calls {call.group(1)}: only {CLOCK_READER}.c reads the clock"
    if module_of(name) not in CLOCK_USERS and "chm_clock_now" in code:
        yield f"{name} asks for real time: its time is the medium's"


def c_function_complaints(name: str, text: str) -> Iterable[str]:
    """clang-format puts the brace of a function, and of nothing else, alone into column 0."""
    start = None
    for number, line in enumerate(text.splitlines(), 1):
        if line == "{":
            start = number
        elif line.startswith("}") and start is not None:
            if number - start - 1 > FUNCTION_MAX:
                yield f"{name}:{start}: function of {number - start - 1} lines"
            start = None


def python_function_complaints(name: str, text: str) -> Iterable[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_MAX:
                yield f"{name}:{node.lineno}: {node.name} has {lines} lines"


def size_complaints(name: str, text: str) -> Iterable[str]:
    lines = text.splitlines()
    most = TEST_FILE_MAX if name.startswith("tests/") else FILE_MAX
    if len(lines) > most and name != "csrc/chm.h":  # the manual of the C API
        yield f"{name} has {len(lines)} lines"
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_MAX:
            yield f"{name}:{number}: {len(line)} columns"


def licence_complaints(name: str, text: str) -> Iterable[str]:
    first = [line for line in text.splitlines()[:2] if not line.startswith("#!")][:1]
    if text and (not first or "SPDX-License-Identifier: Apache-2.0" not in first[0]):
        yield f"{name} does not start with its SPDX line"


def word_complaints(name: str, text: str) -> Iterable[str]:
    for number, line in enumerate(text.splitlines(), 1):
        for pattern in BANNED:
            if re.search(pattern, line):
                yield f"{name}:{number}: {line.strip()[:LINE_MAX]}"


def python_layer_complaints(name: str, text: str) -> Iterable[str]:
    """chm/_ffi.py alone imports the extension; the library does not know the benchmark."""
    for node in ast.walk(ast.parse(text)):
        for module in imported(node):
            if module.startswith("chm._core") and name != "chm/_ffi.py":
                yield f"{name}:{node.lineno} imports {module}: only chm/_ffi.py does"
            if module.startswith("chm.bench") and not name.startswith("chm/bench/"):
                yield f"{name}:{node.lineno} imports {module}: the library is below the benchmark"


def imported(node: ast.AST) -> list[str]:
    """Full names of what an import statement in package chm imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = ".".join(filter(None, ["chm" if node.level else "", node.module]))
        return [f"{base}.{alias.name}" for alias in node.names]
    return []


def comment_complaints(name: str, text: str) -> Iterable[str]:
    """A public function shares a paragraph with a comment."""
    for paragraph in re.split(r"\n\s*\n", text):
        functions = re.findall(r"^[a-z].*?\b(chm_\w+)\(", code_of(paragraph), re.MULTILINE)
        if functions and "/*" not in paragraph:
            yield f"{name}: no comment at {', '.join(functions)}"


# ------------------------------------------------------------------------------ the rules, applied

Rule = Callable[[str, str], Iterable[str]]
C = ("csrc/*.c", "csrc/*.h")
OTHER_C = ("tests/*.c", "tests/*.h", "bench/*.c", "bench/*.h")
PYTHON = ("*.py",)
SHELL = ("tools/*", ".ci/*")
CORE = ("csrc/*/*.c", "csrc/*/*.h", ":!csrc/examples")

RULES: list[tuple[Rule, tuple[str, ...]]] = [
    (include_complaints, CORE),
    (purity_complaints, CORE),
    (clock_complaints, CORE),
    (c_function_complaints, C + OTHER_C),
    (python_function_complaints, PYTHON),
    (size_complaints, C + OTHER_C + PYTHON + SHELL),
    (licence_complaints, C + OTHER_C + PYTHON + SHELL),
    (word_complaints, ("*", ":!LICENSE")),
    (python_layer_complaints, ("chm/*.py",)),
    (comment_complaints, ("csrc/chm.h",)),
]


@pytest.mark.parametrize(("rule", "patterns"), RULES, ids=[rule.__name__ for rule, _ in RULES])
def test_tree(rule: Rule, patterns: tuple[str, ...]) -> None:
    complaints = []
    for path in tracked(*patterns):
        name = name_of(path).removeprefix("csrc/") if patterns is CORE else name_of(path)
        try:
            complaints += rule(name, path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue  # a picture
    assert not complaints, "\n" + "\n".join(complaints)


def test_lists_of_modules_are_up_to_date() -> None:
    named = {*SYSTEM_MODULES, *CLOCK_USERS, CLOCK_READER}
    assert [name for name in sorted(named) if not (TOP / "csrc" / f"{name}.c").exists()] == []


def test_no_mutable_globals() -> None:
    """Nothing of the C core lies in a section that can be written to."""
    subprocess.run(
        ["make", "--silent", "-j2", "-C", "csrc", "archive", "SAN="], cwd=TOP, check=True
    )
    archive = TOP / "build" / "c" / "plain" / "libchm.a"
    symbols = subprocess.check_output(["objdump", "-t", archive], text=True)
    found = re.findall(r" (?:\.t?(?:data|bss)|\*COM\*)\t\S+\s+(\S+)$", symbols, re.MULTILINE)
    assert [name for name in found if name not in (".data", ".bss")] == []


def test_every_header_is_used() -> None:
    sources = tracked("csrc/*.c", "csrc/*.h", "tests/*.c", "tests/*.h")
    used = set(re.findall(r'#include "(?:[^"]*/)?([^"/]+)"', "".join(map(Path.read_text, sources))))
    assert {path.name for path in sources if path.suffix == ".h"} - used == set()


# ------------------------------------------------------------------ the rules, on what breaks them

LONG_C = "void f(void)\n{\n" + "    g();\n" * 61 + "}\n"
LONG_PYTHON = "def f():\n" + "    g()\n" * 60

BROKEN: list[tuple[Rule, str, str]] = [
    (include_complaints, "util/x.c", '#include "fw/device.h"\n'),
    (include_complaints, "media/x.c", '#include "../host/queue.h"\n'),
    (purity_complaints, "fw/x.c", "#include <time.h>\n"),
    (purity_complaints, "fw/x.c", 'void f(void)\n{\n    printf("x");\n}\n'),
    (clock_complaints, "media/wake.c", "void f(void)\n{\n    clock_gettime(0, &t);\n}\n"),
    (clock_complaints, "media/media_sim.c", "void f(void)\n{\n    chm_clock_now();\n}\n"),
    (c_function_complaints, "csrc/x.c", LONG_C),
    (python_function_complaints, "x.py", LONG_PYTHON),
    (size_complaints, "csrc/x.c", "\n" * 601),
    (size_complaints, "csrc/x.c", "x" * 101),
    (licence_complaints, "x.py", '"""Says nothing of a licence."""\n'),
    (licence_complaints, "x", "#!/bin/sh\necho\n"),
    (word_complaints, "x.c", "/* TO" + "DO: later */"),
    (word_complaints, "x.md", "see /ho" + "me/me/x"),
    (python_layer_complaints, "chm/device.py", "from ._core import lib\n"),
    (python_layer_complaints, "chm/device.py", "from . import bench\n"),
    (comment_complaints, "csrc/chm.h", "int chm_a(int x);\n"),
]


@pytest.mark.parametrize(("rule", "name", "text"), BROKEN)
def test_rule_finds(rule: Rule, name: str, text: str) -> None:
    assert list(rule(name, text))


def test_rules_ignore_comments_and_strings() -> None:
    text = '/* printf() is not called */\nvoid f(void)\n{\n    g("exit(1)");\n}\n'
    assert list(purity_complaints("fw/x.c", text)) == []
