# SPDX-License-Identifier: Apache-2.0
"""What is in a file or on a drive that somebody wants to format."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from chm.device import HEADER_MAGIC

_LOOK = 1 << 20
_MAGICS: tuple[tuple[int, bytes, str], ...] = (
    (0x438, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (0x10040, b"_BHRfS_M", "a Btrfs file system"),
    (0x400, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (0, b"LUKS\xba\xbe", "an encrypted (LUKS) volume"),
    (0x200, b"LABELONE", "an LVM physical volume"),
    (0x1000, b"\xfc\x4e\x2b\xa9", "a member of a RAID array"),
    (0xFF6, b"SWAPSPACE2", "swap space"),
    (0x200, b"EFI PART", "a partition table (GPT)"),
    (0x1FE, b"\x55\xaa", "a partition table (MBR)"),
    (0, b"SQLite format 3\0", "an SQLite database"),
    (0, b"\x7fELF", "an executable"),
    (0, b"PK\x03\x04", "a zip archive"),
    (0, b"\x1f\x8b", "gzip-compressed data"),
    (0, b"QFI\xfb", "a qcow2 disk image"),
)


@dataclass(frozen=True)
class Found:
    """``kind``: missing, empty (nothing but zeros in front), chm, foreign, or unusable."""

    kind: str
    what: str
    size: int


def examine(path: str) -> Found:
    """Look, without changing anything. OSError if it cannot be looked at."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return Found("missing", "does not exist yet", 0)
    if stat.S_ISDIR(mode):
        return Found("unusable", f"a directory: name a file in it, such as {path}/kv.chm", 0)
    if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
        return Found("unusable", "neither a file nor a drive", 0)
    with open(path, "rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        front = file.read(_LOOK)
    if front.startswith(HEADER_MAGIC):
        return Found("chm", "a chm device", size)
    for at, magic, what in _MAGICS:
        if front[at : at + len(magic)] == magic:
            return Found("foreign", what, size)
    if front.strip(b"\0"):
        return Found("foreign", "data of an unknown kind", size)
    return Found("empty", "empty" if size == 0 else "nothing but zeros in front", size)
