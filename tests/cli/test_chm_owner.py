# SPDX-License-Identifier: Apache-2.0
"""A store that another process has open: what works, what says why it does not, dead owners."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import chm
from chm.cli.common import complete_namespace
from chm.peek import STALE_S
from chm.stats import Histogram, StoreStats

PAGES = [Path("/dev/shm"), Path(f"/run/user/{os.geteuid()}")]
TOP = Path(chm.__file__).parent.parent
METRICS = Path(__file__).parents[2] / "docs" / "metrics.md"


def page_of(seen: chm.Snapshot) -> Path:
    name = f"chm-{seen.device.device_id}-{seen.info.base:x}"
    found = [where / name for where in PAGES if (where / name).exists()]
    assert len(found) == 1
    return found[0]


def test_these_work_while_it_is_open(owned) -> None:
    run, owner = owned
    info = json.loads(run("info", "--json").stdout)
    assert info["open_elsewhere"]
    assert info["pid"] == owner.pid
    assert f"open in process {owner.pid}" in run("info").stdout
    spaces = json.loads(run("ls", "--namespaces", "--json").stdout)["namespaces"]
    assert [(ns["name"], ns["objects"] >= 8) for ns in spaces] == [("model", True)]
    stats = json.loads(run("stats", "--json").stdout)
    assert stats["balanced"]
    assert stats["store"]["put_keys"] >= 8
    assert stats["store"]["put_ns"]["count"] >= 1
    lines = run("stats", "--watch", "--count", "2", "--interval", "0.1", "--json").stdout
    assert [json.loads(line)["pid"] for line in lines.splitlines()] == [owner.pid] * 2
    assert "per second" in run("stats", "--watch", "--count", "2", "--interval", "0.1").stdout
    assert "slow jobs" in run("stats", "--slow").stdout


@pytest.mark.parametrize("command", [["ls"], ["verify"], ["evict", "--all"], ["resize"]])
def test_the_others_say_who_has_it(owned, command) -> None:
    """F75."""
    run, owner = owned
    text = run(*command, code=1).stderr
    assert f"process {owner.pid}" in text
    assert "chm info, stats, metrics" in text
    assert f"process {owner.pid}" in run("format", "--force", "-y", code=1).stderr


def test_counters_close_at_every_look(owned) -> None:
    """F35: on a store that is at work, seen from outside, whole and never half-written."""
    run, _ = owned
    before = chm.peek(run.path)
    while chm.peek(run.path).stats.gets < before.stats.gets + 200:
        seen = chm.peek(run.path)
        assert seen.stats.unbalanced(seen.info.data_bytes) == []
        assert seen.stats.put_keys >= before.stats.put_keys


def test_counters_that_do_not_close_are_told(owned) -> None:
    stats = chm.peek(owned[0].path).stats
    assert "gets" in replace(stats, gets=stats.gets + 1).unbalanced()[0]
    assert "skipped" in " ".join(replace(stats, skipped_chain=7).unbalanced())


def test_owner_is_killed(owned) -> None:
    """F75: its page stays behind, and nobody takes it for news."""
    run, owner = owned
    page = page_of(chm.peek(run.path))
    assert page.stat().st_mode & 0o777 == 0o600
    owner.kill()
    owner.wait()
    assert page.exists()
    with pytest.raises(chm.NotOpen):
        chm.peek(run.path)
    assert "no process has it open" in run("stats", code=1).stderr
    assert run("metrics").stdout.splitlines()[-2:] == ["chm_up 0.0", "# EOF"]
    left = page.read_bytes()
    with chm.open(run.path, dram_bytes="32MiB") as device:  # the device, and not the store
        with pytest.raises(chm.Busy, match=f"process {os.getpid()}"):
            chm.peek(run.path)
        assert page.read_bytes() == left
        with chm.Store(device) as store:
            seen = chm.peek(run.path)
            assert seen.pid == os.getpid()
            assert seen.stats.objects == store.stats().objects >= 8
    assert not page.exists()
    assert json.loads(run("info", "--json").stdout)["objects"] >= 8
    run("verify")


def test_damaged_page_is_not_believed(made) -> None:
    with chm.open(made.path, dram_bytes="32MiB") as device, chm.Store(device) as store:
        seen = chm.peek(made.path)
        assert store.info.published
        page = page_of(seen)
        content = bytearray(page.read_bytes())
        content[len(content) // 2] ^= 1
        page.write_bytes(content)
        with pytest.raises(chm.Busy, match="publishes no counters"):
            chm.peek(made.path)
        content[16] ^= 0x40  # version
        page.write_bytes(content)
        with pytest.raises(chm.NewerFormat, match="another version"):
            chm.peek(made.path)
        page.write_bytes(b"")
        with pytest.raises(chm.Busy):
            chm.peek(made.path)


def test_publishing_can_be_turned_off(made) -> None:
    with (
        chm.open(made.path, dram_bytes="32MiB") as device,
        chm.Store(device, publish_s=None) as store,
    ):
        assert not store.info.published
        with pytest.raises(chm.Busy):
            chm.peek(made.path)


def test_silence_is_told() -> None:
    assert not chm.Snapshot.stale.fget(_aged(STALE_S))
    assert chm.Snapshot.stale.fget(_aged(STALE_S + 0.1))


def _aged(seconds: float) -> chm.Snapshot:
    seen = object.__new__(chm.Snapshot)
    object.__setattr__(seen, "age_s", seconds)
    return seen


def test_written_bytes_are_kept_across_openings(made) -> None:
    made.fill()
    before = json.loads(made("info", "--json").stdout)["store"]["life_written_bytes"]
    assert before >= 8 * 65536
    made.fill(namespace="other")
    after = json.loads(made("info", "--json").stdout)["store"]
    assert after["life_written_bytes"] >= before + 8 * 65536
    assert after["life_open_ns"] > 0


def test_slow_jobs_have_their_stages(made) -> None:
    made.fill()
    with chm.open(made.path, dram_bytes="32MiB") as device, chm.Store(device) as store:
        ns = store.namespace("model")
        keys = [bytes([n]) * 16 for n in range(8)]
        for i in range(30):
            store.get(ns, keys[: i % 8 + 1], np.empty((i % 8 + 1, 65536), np.uint8)).result()
        slow = store.slow()
        stats = store.stats()
    assert len(slow) == 16
    assert slow == sorted(slow, key=lambda job: -job.total_ns)
    assert slow[0].total_ns == stats.get_ns.max
    assert all(job.op == "get" and job.work_ns > 0 for job in slow)
    assert all(job.wait_ns + job.device_ns <= job.total_ns for job in slow)
    assert stats.read_wait_ns.count == stats.read_device_ns.count == stats.get_ns.count == 30


def test_completing_names_of_namespaces(owned) -> None:
    run, _ = owned

    class Context:
        params = {"paths": [run.path]}  # noqa: RUF012

    assert [c.value for c in complete_namespace(Context(), None, "mo")] == ["model"]
    assert complete_namespace(Context(), None, "x") == []


# ------------------------------------------------------------------------------------- metrics


def test_metrics_are_openmetrics(owned) -> None:
    pytest.importorskip("prometheus_client")
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse

    found = {m.name: m for m in parse(owned[0]("metrics").stdout)}
    assert found["chm_up"].samples[0].value == 1
    assert found["chm_store_put_keys"].type == "counter"
    assert found["chm_store_get_seconds"].type == "histogram"
    ops = found["chm_store_get_seconds"].samples
    assert ops[-1].value > 0
    skipped = found["chm_store_put_skipped_keys"].samples
    assert {s.labels["reason"] for s in skipped} == {"buffer", "space", "quota", "objects", "chain"}
    names = [m for m in found if m.startswith("chm_store_namespace")]
    assert found[names[0]].samples[0].labels["namespace"] == "model"


def test_every_counter_is_a_metric_and_each_is_explained() -> None:
    pytest.importorskip("prometheus_client")
    from chm.metrics import ROWS

    sources = {row.source.removeprefix("stats.") for row in ROWS}
    assert {f.name for f in fields(StoreStats)} - sources - {"skipped", "get_errors"} == set()
    page = METRICS.read_text()
    named = {row.name + "_total" * (row.kind == "counter") for row in ROWS}
    assert {name for name in named if f"`{name}`" not in page} == set()


def test_histograms_keep_count_and_order() -> None:
    pytest.importorskip("prometheus_client")
    from chm.metrics import cumulative

    counts = cumulative(Histogram(3, 3_000_000, 2_900_000, {40: 1, 600: 1, 700: 1}))
    values = [n for _, n in counts]
    assert values == sorted(values)
    assert counts[-1] == ("+Inf", 3.0)
    assert values[0] == 1


def test_metrics_are_served(owned) -> None:
    prometheus = pytest.importorskip("prometheus_client")
    from chm import metrics

    run, _ = owned
    made = metrics.registry(lambda: chm.peek(run.path))
    server, thread = prometheus.start_http_server(0, "127.0.0.1", made)
    try:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        with urllib.request.urlopen(url) as answer:
            assert b"chm_store_put_keys_total" in answer.read()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def listening(owned) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """``chm metrics --listen`` in a process of its own: its address, and it."""
    pytest.importorskip("prometheus_client")
    run, _ = owned
    line = [sys.executable, "-c", "from chm.cli.main import main; main()", "metrics", run.path]
    with subprocess.Popen(
        [*line, "--listen", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TOP)},
    ) as server:
        try:
            assert server.stderr is not None
            said = server.stderr.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+/metrics", said)
            assert found, said + server.stderr.read()
            yield found[0], server
        finally:
            server.kill()


def scrape(url: str) -> dict[str, float]:
    """Metrics by name; of those with labels one."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.partition("{")[0]: float(value) for name, value in pairs}


def test_listening_serves_until_a_signal(owned, listening) -> None:
    """Every scrape is a new look at the owner, also when there is none any more."""
    _, owner = owned
    url, server = listening
    for seen in (scrape(url), scrape(url)):
        assert seen["chm_up"] == 1
        assert seen["chm_store_put_keys_total"] >= 8
    owner.kill()
    owner.wait()
    assert scrape(url)["chm_up"] == 0
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=60) == 130
    assert server.stderr is not None
    assert "interrupted" in server.stderr.read()
    with pytest.raises(urllib.error.URLError):
        scrape(url)


@pytest.mark.parametrize(
    ("text", "where"), [("9000", ("127.0.0.1", 9000)), ("[::1]:1", ("::1", 1)), (":7", None)]
)
def test_listening_is_for_this_machine_unless_said(text, where) -> None:
    from chm.cli.watch import _address

    assert _address(text) == (where or ("127.0.0.1", 7))


def test_wrong_address_is_wrong_usage(made) -> None:
    pytest.importorskip("prometheus_client")
    assert "ADDR:PORT" in made("metrics", "--listen", "here", code=2).stderr
