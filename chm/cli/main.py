# SPDX-License-Identifier: Apache-2.0
"""chm: the command line.

Rules for every command: what was asked for goes to standard output, everything else (questions,
progress, notes, errors) to standard error. With ``--json`` standard output is JSON. Nothing is
destroyed without a flag that says so. Exit codes: 0 done, 1 it failed or damage was found, 2 wrong
usage, 130 interrupted.
"""

from __future__ import annotations

import errno
import logging
import signal
from typing import Any, NoReturn

import click

import chm
from chm.cli.check import verify
from chm.cli.evict import evict
from chm.cli.look import info, ls
from chm.cli.make import format_command, resize
from chm.cli.watch import metrics, stats

INTERRUPTED = 130
_WHILE_OPEN = "while it is open there, these work: chm info, stats, metrics, and ls --namespaces"


class Cli(click.Group):
    """The group: turns what may go wrong into one line on standard error and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # click ends quietly with 1
        except chm.ChmError as e:
            raise click.ClickException(explain(e)) from e
        except ValueError as e:
            raise click.UsageError(str(e)) from e
        except OSError as e:
            raise click.ClickException(f"{e.filename or 'chm'}: {e.strerror or e}") from e
        except (KeyboardInterrupt, click.Abort):
            click.echo("chm: interrupted", err=True)
            ctx.exit(INTERRUPTED)


def explain(error: chm.ChmError) -> str:
    """The error in words, and what to do where the library cannot know it."""
    text = error.strerror or str(error)
    name = error.filename
    if isinstance(name, str) and name not in text:
        text = f"{name}: {text}"
    if error.errno == errno.EBUSY and "in use by" in text and "publishes" not in text:
        return f"{text}; {_WHILE_OPEN}"
    if error.errno == errno.ENOENT and "store" in text and "format" in text:
        return f"{text} (chm format; --base if raw space lies in front of the store)"
    return text


@click.group(cls=Cli, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(chm.__version__, prog_name="chm")
@click.option("-v", "--verbose", is_flag=True, help="Tell what the store logs, too.")
def cli(verbose: bool) -> None:
    """Make, look at, check and watch a key-value store.

    PATH is the file or drive that the store lies on; several are the members of one striped
    device, in the order in which they were formatted. Without PATH, $CHM_PATH counts (several
    paths with : between them).

    Exit codes: 0 done, 1 failed or damage found, 2 wrong usage, 130 interrupted.
    """
    logging.getLogger("chm").addHandler(logging.NullHandler())
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")


for _command in (format_command, resize, info, ls, verify, evict, stats, metrics):
    cli.add_command(_command)


def main() -> NoReturn:
    """Entry point. A termination signal ends like Ctrl-C, so that the store is closed clean."""

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    cli()
    raise AssertionError("click exits by itself")
