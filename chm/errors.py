# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as exceptions.

Every failure of the device is a ``ChmError``. It is an ``OSError``, so ``e.errno`` is the number
the C side gave and ``e.strerror`` says what failed and, where the C side knows, what to do. The
subclasses exist so that callers can name what they expect: ``except chm.WouldBlock``.
"""

from __future__ import annotations

import errno
import os


class ChmError(OSError):
    """A call of the device failed; ``errno`` is positive, as everywhere in Python."""


class InvalidArgument(ChmError, ValueError):
    """EINVAL: an address, a length or an option that cannot be."""


class OutOfRange(ChmError):
    """ERANGE: beyond the capacity of the device."""


class WouldBlock(ChmError, BlockingIOError):
    """EAGAIN: no room right now. Nothing was done; skip it or try again."""


class DeviceFull(ChmError):
    """ENOSPC: no space on the device, in the space of objects, or in the file system below."""


class TableFull(ChmError):
    """ENOMEM: no memory, or as many objects as the space was made for."""


class StaleHandle(ChmError):
    """ESTALE: the request was released before."""


class MediaError(ChmError):
    """EIO: the drive failed; the bytes of this item are not to be had."""


class TooLarge(ChmError):
    """E2BIG: larger than the window (stage it with a stream) or than half the write buffer."""


class Expired(ChmError):
    """ETIME: nobody waited in time, no window space in time, or past a stream's deadline. Final."""


class WaitTimeout(ChmError, TimeoutError):
    """ETIMEDOUT: the caller stopped waiting. The request goes on and can be waited for again."""


class Deadlock(ChmError):
    """EDEADLK: the caller holds so many pieces that the next one has no space. Release one."""


class Busy(ChmError):
    """EBUSY: open elsewhere (the text names the owner), a full request table, or still in use."""


class NotFound(ChmError, FileNotFoundError):
    """ENOENT: no such file, or no such object."""


class Exists(ChmError, FileExistsError):
    """EEXIST: the file holds something that is not a chm device; ``force`` overwrites it."""


class BadHeader(ChmError):
    """EBADMSG: a device header, a store or an object whose checksum is wrong or that is none."""


class ForeignMember(ChmError):
    """EXDEV: a backing file is missing, out of order, or of another device."""


class Unsupported(ChmError):
    """EOPNOTSUPP: the system or the medium cannot do this; the text says what to do."""


class Closed(ChmError):
    """ESHUTDOWN: the device is closed or being closed."""


class Forked(ChmError, ChildProcessError):
    """ECHILD: the device was opened in the parent process. Open it in the child instead."""


class QuotaFull(ChmError):
    """EDQUOT: the namespace has its quota, and nothing in it can be evicted."""


class WrongSize(ChmError):
    """EMSGSIZE: the object has another length than the buffer. Nothing was read."""


class ChainBroken(ChmError):
    """ENOLINK: not put, because the key before it was refused: it would never be found."""


class Cancelled(ChmError):
    """ECANCELED: the job was cancelled before this key had ended."""


class NewerFormat(ChmError):
    """EPROTO: made by a newer version of this package, which can read it."""


class NotOpen(ChmError):
    """ESRCH: no process has the device open, so nobody publishes counters. Open it yourself."""


class KeysFailed(ChmError):
    """Some keys of a job failed; ``errno`` is that of the first of them.

    ``errors`` has the exception of each by its place, ``statuses`` all results: 0 or above is
    success, so what is not in ``errors`` has been done.
    """

    errors: dict[int, ChmError]
    statuses: list[int]


_BY_ERRNO: dict[int, type[ChmError]] = {
    errno.EINVAL: InvalidArgument,
    errno.ERANGE: OutOfRange,
    errno.EAGAIN: WouldBlock,
    errno.ENOSPC: DeviceFull,
    errno.ENOMEM: TableFull,
    errno.ESTALE: StaleHandle,
    errno.EIO: MediaError,
    errno.E2BIG: TooLarge,
    errno.ETIME: Expired,
    errno.ETIMEDOUT: WaitTimeout,
    errno.EDEADLK: Deadlock,
    errno.EBUSY: Busy,
    errno.ENOENT: NotFound,
    errno.EEXIST: Exists,
    errno.EBADMSG: BadHeader,
    errno.EXDEV: ForeignMember,
    errno.EOPNOTSUPP: Unsupported,
    errno.ESHUTDOWN: Closed,
    errno.ECHILD: Forked,
    errno.EDQUOT: QuotaFull,
    errno.EMSGSIZE: WrongSize,
    errno.ENOLINK: ChainBroken,
    errno.ECANCELED: Cancelled,
    errno.EPROTO: NewerFormat,
    errno.ESRCH: NotOpen,
}

_HINTS: dict[int, str] = {
    errno.ECHILD: "the device was opened in another process; open it in this one",
    errno.ESHUTDOWN: "the device is closed",
    errno.ESTALE: "the request was released",
    errno.EDEADLK: "release a piece, and drop the views of it, before taking the next",
}


def error_of(rc: int, what: str, path: str | None = None) -> ChmError:
    """The exception for a negative return code, not raised."""
    code = -rc
    reason = _HINTS.get(code) or os.strerror(code)
    return _BY_ERRNO.get(code, ChmError)(code, f"{what}: {reason}", path)


def keys_failed(what: str, statuses: list[int]) -> KeysFailed:
    """The exception for a job of which at least one key has a status below 0, not raised."""
    errors = {i: error_of(rc, f"{what} of key {i}") for i, rc in enumerate(statuses) if rc < 0}
    first, error = next(iter(errors.items()))
    reason = os.strerror(-statuses[first])
    text = f"{what}: {len(errors)} of {len(statuses)} keys failed, the first is key {first}"
    failed = KeysFailed(error.errno, f"{text} ({reason})")
    failed.errors, failed.statuses = errors, statuses
    return failed


def error_from_text(code: int, text: str, path: str | None = None) -> ChmError:
    """The exception for a call that explains itself (``struct chm_error``)."""
    number = abs(code)
    return _BY_ERRNO.get(number, ChmError)(number, text or os.strerror(number), path)


def check(rc: int, what: str, path: str | None = None) -> int:
    """Return ``rc`` if it is a result, else raise what it means."""
    if rc >= 0:
        return rc
    raise error_of(rc, what, path)
