# SPDX-License-Identifier: Apache-2.0
"""Failures as exceptions: the class, the number, the words."""

import errno
import pickle

import pytest

import chm
from chm import errors


def test_every_class_is_an_oserror_with_its_number() -> None:
    for number, cls in errors._BY_ERRNO.items():
        error = errors.error_of(-number, "prefetch", "disk.chm")
        assert type(error) is cls
        assert isinstance(error, OSError)
        assert error.errno == number
        assert error.filename == "disk.chm"
        assert "prefetch" in str(error)


def test_the_classes_of_python_work_too() -> None:
    assert issubclass(chm.WaitTimeout, TimeoutError)
    assert issubclass(chm.WouldBlock, BlockingIOError)
    assert issubclass(chm.InvalidArgument, ValueError)
    assert issubclass(chm.NotFound, FileNotFoundError)


def test_an_unknown_number_is_a_plain_chm_error() -> None:
    error = errors.error_of(-errno.EXFULL, "x")
    assert type(error) is chm.ChmError
    assert error.errno == errno.EXFULL


def test_check_passes_results_on() -> None:
    assert errors.check(7, "x") == 7
    with pytest.raises(chm.MediaError):
        errors.check(-errno.EIO, "x")


def test_errors_can_be_sent_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(errors.error_of(-errno.EIO, "read")))
    assert type(error) is chm.MediaError
    assert error.errno == errno.EIO


def test_open_says_what_is_wrong(tmp_path) -> None:
    with pytest.raises(chm.NotFound, match=r"none\.chm"):
        chm.open(tmp_path / "none.chm")
    strange = tmp_path / "strange"
    strange.write_bytes(b"not a device" * 1000)
    with pytest.raises(chm.BadHeader) as caught:
        chm.open(strange)
    assert caught.value.filename == str(strange)
    with pytest.raises(chm.Exists):
        chm.format(strange, "16MiB")
    assert strange.read_bytes().startswith(b"not a device")
    chm.format(strange, "16MiB", force=True)
    chm.open(strange, dram_bytes="32MiB").close()


def test_f75_a_second_open_names_the_owner(tmp_path) -> None:
    import os

    path = tmp_path / "one.chm"
    chm.format(path, "16MiB")
    alias = tmp_path / "alias.chm"
    alias.symlink_to(path)
    with chm.open(path, dram_bytes="32MiB"):
        for name in (path, alias):
            with pytest.raises(chm.Busy, match=str(os.getpid())):
                chm.open(name, dram_bytes="32MiB")
    chm.open(path, dram_bytes="32MiB").close()


def test_after_close_every_call_says_so(sim) -> None:
    req = sim.prefetch(0, 4096)
    sim.close()
    sim.close()
    assert sim.closed
    for call in (
        lambda: sim.prefetch(0, 4096),
        lambda: sim.read(0, 4096),
        lambda: sim.write(0, bytes(4096)),
        lambda: sim.write_begin(0, 4096),
        lambda: sim.stream([(0, 4096)]).next(),
        lambda: chm.Space(sim),
        lambda: sim.flush(),
        lambda: sim.trim(0, 4096),
        lambda: sim.stats(),
        lambda: sim.info,
        lambda: sim.now(),
        lambda: sim.step(),
        lambda: sim.reap(),
        lambda: req.wait(),
    ):
        with pytest.raises(chm.Closed):
            call()
    req.release()
