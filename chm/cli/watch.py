# SPDX-License-Identifier: Apache-2.0
"""``chm stats`` and ``chm metrics``: the counters of a store that some process has open."""

from __future__ import annotations

import itertools
import time
from typing import Any

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table

import chm
from chm.cli.common import Target, console, emit, json_option, note, plain, target_options
from chm.stats import GET_ERRORS, SKIPPED, Histogram
from chm.units import format_duration, format_rate, format_size

PORT = 9753


def _rows(now: chm.Snapshot) -> list[tuple[str, int, str]]:
    """Name, counter, and how to write it (n or bytes)."""
    s, d = now.stats, now.device_stats
    rows = [
        ("put keys", s.put_keys, "n"),
        ("  admitted", s.admitted, "n"),
        ("  duplicate", s.duplicate, "n"),
        ("  skipped", s.skipped, "n"),
        *((f"    {name[8:]}", getattr(s, name), "n") for name in SKIPPED),
        ("  failed", s.put_failed, "n"),
        ("payload put", s.admitted_bytes, "bytes"),
        ("looked up keys", s.lookups, "n"),
        ("  hits", s.lookup_hits, "n"),
        ("get keys", s.gets, "n"),
        ("  hits", s.hits, "n"),
        ("  misses", s.misses, "n"),
        ("  errors", s.get_errors, "n"),
        *((f"    {name[7:]}", getattr(s, name), "n") for name in GET_ERRORS),
        ("payload got", s.hit_bytes, "bytes"),
        ("evicted objects", s.evicted, "n"),
        ("dropped objects", s.dropped, "n"),
        ("drive read", d.read_bytes, "bytes"),
        ("drive written", d.write_bytes, "bytes"),
        ("drive errors", d.io_errors, "n"),
    ]
    quiet = {f"    {name[8:]}" for name in SKIPPED} | {f"    {name[7:]}" for name in GET_ERRORS}
    return [row for row in rows if row[1] or row[0] not in quiet]


def _counter_table(now: chm.Snapshot, before: chm.Snapshot | None) -> Table:
    seconds = now.open_s - before.open_s if before else now.open_s
    old = {i: row[1] for i, row in enumerate(_rows(before))} if before else {}
    if before and [r[0] for r in _rows(before)] != [r[0] for r in _rows(now)]:
        old, seconds = {}, now.open_s
    table = Table("since open", "", "per second" if before else "per second, mean")
    for i, (name, value, kind) in enumerate(_rows(now)):
        rate = (value - old.get(i, 0)) / seconds if seconds > 0 else 0.0
        if kind == "bytes":
            table.add_row(name, format_size(value), format_rate(rate))
        else:
            table.add_row(name, str(value), f"{rate:.4g}")
    return table


def _latency_table(now: chm.Snapshot) -> Table:
    table = Table("time", "count", "p50", "p90", "p99", "max")
    s, d = now.stats, now.device_stats
    stages: list[tuple[str, Histogram]] = [
        ("get", s.get_ns),
        ("lease", s.lease_ns),
        ("  wait", s.read_wait_ns),
        ("  device", s.read_device_ns),
        ("  check", s.read_check_ns),
        ("put", s.put_ns),
        ("  wait", s.put_wait_ns),
        ("  copy", s.put_copy_ns),
        ("sync", s.sync_ns),
        ("drive read", d.read_io_ns),
        ("drive write", d.write_io_ns),
    ]
    for name, h in stages:
        if h.count:
            quantiles = (format_duration(h.quantile(q)) for q in (0.5, 0.9, 0.99))
            table.add_row(name, str(h.count), *quantiles, format_duration(h.max))
    return table


def _level_table(now: chm.Snapshot) -> Table:
    s, d = now.stats, now.device_stats
    table = Table("now", "")
    table.add_row("objects", f"{s.objects} of {now.info.max_objects}")
    table.add_row("used", f"{format_size(s.used_bytes)} of {format_size(now.info.data_bytes)}")
    table.add_row("jobs, leases", f"{s.jobs}, {s.leases}")
    table.add_row("not durable", str(s.not_durable))
    window, buffer = now.device.window_bytes, now.device.write_buffer_bytes
    table.add_row("window", f"{format_size(d.window_used_bytes)} of {format_size(window)}")
    table.add_row("write buffer", f"{format_size(d.buffer_used_bytes)} of {format_size(buffer)}")
    return table


def _slow_table(now: chm.Snapshot) -> Table:
    table = Table("slow jobs", "keys", "payload", "total", "wait", "device", "work", "result")
    for job in now.slow:
        times = (job.total_ns, job.wait_ns, job.device_ns, job.work_ns)
        result = "ok" if job.result == 0 else f"{job.ok} of {job.n} ok ({job.result})"
        size = format_size(job.bytes)
        table.add_row(job.op, str(job.n), size, *map(format_duration, times), result)
    return table


def _screen(now: chm.Snapshot, before: chm.Snapshot | None, slow: bool) -> Group:
    title = f"process {now.pid}, {now.age_s:.1f} s ago"
    title += ": it hangs, is stopped, or steps its device seldom" if now.stale else ""
    title += "; DEGRADED" if now.info.degraded else ""
    tables: list[Any] = [title]
    if slow:
        tables.append(_slow_table(now))
    else:
        tables += [_level_table(now), _counter_table(now, before), _latency_table(now)]
    return Group(*tables)


def _document(now: chm.Snapshot) -> dict[str, Any]:
    return {
        "command": "stats",
        "pid": now.pid,
        "age_s": now.age_s,
        "open_s": now.open_s,
        "stale": now.stale,
        "balanced": not now.stats.unbalanced(now.info.data_bytes),
        "store": plain(now.stats),
        "device": plain(now.device_stats),
        "slow": [job.to_dict() for job in now.slow],
    }


def _look(target: Target) -> chm.Snapshot:
    try:
        return target.peek()
    except chm.NotOpen as e:
        raise click.ClickException(
            f"{e.strerror}, and counters live as long as it is open; "
            f"chm info {target.paths[0]} shows what is stored"
        ) from e


@click.command()
@target_options(dram=None)
@click.option("--watch", is_flag=True, help="Go on, with rates, until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often with --watch.",
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="End --watch after N looks.")
@click.option("--slow", is_flag=True, help="The slowest jobs, with their stages, instead.")
@json_option
def stats(
    target: Target, watch: bool, interval: float, count: int | None, slow: bool, as_json: bool
) -> None:
    """Show the counters of a store that some process has open.

    Its owner publishes them four times a second. With --json and --watch, one document a line.
    """
    looks = range(count or 1) if count or not watch else itertools.count()
    before: chm.Snapshot | None = None
    live = Live(console=console(), auto_refresh=False)
    show = watch and not as_json and live.console.is_terminal
    if show:
        live.start()
    try:
        for i in looks:
            if i:
                time.sleep(interval)
            now = _look(target)
            if as_json:
                emit(_document(now), line=watch)
            elif show:
                live.update(_screen(now, before, slow), refresh=True)
            else:
                live.console.print(_screen(now, before, slow))
            before = now
    finally:
        if show:
            live.stop()


def _address(text: str) -> tuple[str, int]:
    """HOST and port of HOST:PORT, :PORT or PORT."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise click.UsageError(f"--listen {text!r}: write ADDR:PORT, or PORT for this machine only")
    return host.strip("[]") or "127.0.0.1", int(port)


@click.command()
@target_options(dram=None)
@click.option(
    "--listen",
    metavar="[ADDR:]PORT",
    help="Serve them over HTTP until Ctrl-C; without ADDR to this machine only.",
)
@click.option("--json", "as_json", is_flag=True, help="Names, kinds and values as JSON.")
def metrics(target: Target, listen: str | None, as_json: bool) -> None:
    """Tell the counters as OpenMetrics text, for Prometheus and the like.

    While no process has the store open that is chm_up 0 and nothing else. docs/metrics.md explains
    each metric.

      chm metrics /mnt/nvme/kv.chm --listen 9753
    """
    try:
        from chm import metrics as exported
    except ImportError as e:
        fix = "python -m pip install prometheus-client"
        raise click.ClickException(f"metrics need the package prometheus-client: {fix}") from e
    if listen is not None:
        _serve(target, *_address(listen))
        return
    if not as_json:
        click.echo(exported.render(target.peek), nl=False)
        return
    found = exported.registry(target.peek).collect()
    emit(
        {
            "command": "metrics",
            "metrics": [
                {"name": s.name, "kind": m.type, "labels": s.labels, "value": s.value}
                for m in found
                for s in m.samples
            ],
        }
    )


def _serve(target: Target, host: str, port: int) -> None:
    from prometheus_client import start_http_server

    from chm import metrics as exported

    server, thread = start_http_server(port, host, exported.registry(target.peek))
    note(f"serving http://{host}:{server.server_port}/metrics; Ctrl-C ends it")
    try:
        while thread.is_alive():
            thread.join(0.5)
    finally:
        server.shutdown()
        server.server_close()
