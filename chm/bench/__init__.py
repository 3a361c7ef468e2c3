# SPDX-License-Identifier: Apache-2.0
"""chm-bench: experiments on a device, and how their results are kept.

From the command to the device, each module needs only those below it:

    cli, jobs, sweep, campaign     commands; many runs; where results go
    runner                         the experiments by name
    paper                          published figures (a package of its own)
    turns, play, streams, rw, latency, doctor
    serve, reader, index, drive    requests against a cache; several at a time
    target, config                 the device under test
    workload, traces, payload, models, options, measure, outcome, report, charts, host, ui

docs/benchmarking.md is the manual.
"""
