# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the tests of chm-bench: every command goes through click's runner."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click.testing
import pytest

from chm.bench.cli import cli

Invoke = Callable[..., click.testing.Result]
Measure = Callable[..., dict[str, Any]]

# A device so small that a run takes milliseconds. Its clock is virtual: figures are exact.
SIM = ["--media", "sim", "--dram", "8MiB", "--write-buffer", "4MiB"]


@pytest.fixture
def invoke() -> Invoke:
    """Run chm-bench with these arguments; standard output and standard error apart."""

    def run(*args: str, code: int = 0) -> click.testing.Result:
        result = click.testing.CliRunner().invoke(cli, list(args))
        told = f"{args}: exit code {result.exit_code}\n{result.stdout}\n{result.stderr}"
        assert result.exit_code == code, told
        return result

    return run


@pytest.fixture
def measure(invoke: Invoke) -> Measure:
    """Run one experiment on a tiny simulated device; its result from the JSON document."""

    def run(*args: str) -> dict[str, Any]:
        document = json.loads(invoke(*args, *SIM, "--json", "-").stdout)
        (result,) = document["results"]
        assert document["failures"] == []
        return dict(result)

    return run
