"""The command line. Each command is one module of `moe_overlap.commands` and one line here.

A command module imports nothing heavy at its top: `moe-overlap --help` has to be instant.
"""

from __future__ import annotations

import gc
import io
import os
import sys

import typer

from models.errors import InputError
from moe_overlap.commands.calibrate import calibrate
from moe_overlap.commands.checkpoint import checkpoint
from moe_overlap.commands.compare import compare
from moe_overlap.commands.explain import explain
from moe_overlap.commands.fusion import fusion
from moe_overlap.commands.hardware import hardware
from moe_overlap.commands.listing import scenarios, schema
from moe_overlap.commands.run import run
from moe_overlap.commands.scenario import scenario
from moe_overlap.commands.simulate import simulate
from moe_overlap.commands.validate import validate
from moe_overlap.commands.view import view
from moe_overlap.errors import FAILED, MISSING, REFUSED, MachineLacks, RunFailed
from schedules.caret import GrammarError

COMMANDS = (
    compare,
    simulate,
    run,
    validate,
    view,
    fusion,
    checkpoint,
    explain,
    calibrate,
    hardware,
    scenario,
    scenarios,
    schema,
)

app = typer.Typer(
    name="moe-overlap",
    help="Which overlap schedule should these MoE layers run under, by how much, and why?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in COMMANDS:
    app.command()(command)


def _version(wanted: bool) -> None:
    if wanted:
        from moe_overlap import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True),
) -> None:
    pass


def main() -> None:
    """Runs the command line; the exit status says how it ended (see `moe_overlap.errors`)."""
    gc.set_threshold(COLLECT_AFTER)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, io.TextIOWrapper
        ):  # a terminal that has no sign for a micro gets a "?"
            stream.reconfigure(errors="replace")
    try:
        app()
    except (InputError, GrammarError) as error:
        _end(str(error), REFUSED)
    except MachineLacks as error:
        _end(str(error), MISSING)
    except RunFailed as error:
        _end(str(error), FAILED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(DONE_BY_READER)
    except OSError as error:
        _end(f"{error.filename or 'output'}: {error.strerror or error}", REFUSED)
    except KeyboardInterrupt:
        _end("interrupted", INTERRUPTED)


# Predictions make millions of objects and hardly a cycle: looking for them takes a tenth of the time.
COLLECT_AFTER = 50_000
DONE_BY_READER = 141
INTERRUPTED = 130


def _end(message: str, status: int) -> None:
    typer.echo(f"error: {message}", err=True)
    sys.exit(status)
