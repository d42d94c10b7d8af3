"""`moe-overlap scenario`: a launch command becomes a scenario file."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from moe_overlap.commands.arguments import OutputOption


def scenario(
    from_flags: Annotated[
        str,
        typer.Option(
            "--from-flags",
            help='An SGLang launch command in quotes: "python -m sglang.launch_server ...".',
            show_default=False,
        ),
    ],
    hardware: Annotated[
        str, typer.Option("--hardware", help="Library profile or path.", show_default=False)
    ],
    phase: Annotated[
        Literal["decode", "prefill"] | None,
        typer.Option("--phase", help="Which step is asked for."),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="Per rank: sequences (decode), new tokens (prefill)."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option("--tokens", min=1, help="Tokens of each sequence.")
    ] = None,
    output: OutputOption = None,
) -> None:
    """Write the scenario of an SGLang launch command, and list what it could not use."""
    from moe_overlap.output import writable
    from scenarios.from_flags import Assumptions, scenario_from_flags
    from scenarios.load import check
    from scenarios.resolve import resolve
    from schedules.files import write_beside

    assumptions = Assumptions(hardware, phase, batch, tokens)
    written = scenario_from_flags(from_flags, assumptions)
    resolve(check(written.document))
    if output is None:
        typer.echo(written.text, nl=False)
    else:
        write_beside(writable(output), written.text)
    for word in written.unused:
        typer.echo(f"not used: {word}", err=True)
