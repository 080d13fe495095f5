"""Sandboxes: start, connect, exec, list, pause, resume, fork, timeout, delete."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from forkyard.base.errors import ForkyardError
from forkyard.cli.completion import complete_sandbox
from forkyard.cli.execute import execute
from forkyard.cli.exits import FAILED, USAGE, fail, plain
from forkyard.cli.options import RESUME_FOR_S, Cwd, Env, SandboxId, Template, User, pairs
from forkyard.cli.output import Column, Format, Output, moment, note, show, show_one, span, wants_json, words
from forkyard.cli.running import exit_code, with_api
from forkyard.cli.terminal import attach_shell
from forkyard.client.api import Api
from forkyard.client.errors import ServerUnreachable

OWN_FAILURE = 125
"""Exit code of `exec` when not the command failed but getting it to run, as `docker exec` has it."""

Timeout = Annotated[int, typer.Option("--timeout", "-t", help="Seconds to live, from now.")]

_COLUMNS: Sequence[Column] = (
    ("ID", lambda s: str(s["sandboxID"])),
    ("TEMPLATE", lambda s: str(s.get("alias") or s["templateID"])),
    ("STATE", lambda s: str(s["state"])),
    ("CPU", lambda s: str(s["cpuCount"])),
    ("MEMORY", lambda s: f"{s['memoryMB']} MiB"),
    ("STARTED", lambda s: span(s["startedAt"])),
    ("ENDS", lambda s: span(s["endAt"]) if s["state"] == "running" else ""),
    ("METADATA", lambda s: words(s.get("metadata"))),
)


def _pause_at_expiry() -> bool:
    """AgentENV's command pauses at expiry unless told otherwise; E2B's kills."""
    return sys.argv[0].rsplit("/", 1)[-1] == "aenv"


def start(
    template: Template = "base",
    timeout: Timeout = 300,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Print the id and return; no shell.")
    ] = False,
    secure: Annotated[bool, typer.Option(help="Ask for a token on everything inside.")] = True,
    env: Env = None,
    metadata: Annotated[
        list[str] | None, typer.Option("--metadata", "-m", help="KEY=VALUE, repeatable.")
    ] = None,
    auto_pause: Annotated[
        bool | None,
        typer.Option(help="Pause at the end of its time instead of killing (the default of aenv)."),
    ] = None,
    auto_resume: Annotated[bool, typer.Option(help="Resume when a request for it arrives.")] = False,
    internet: Annotated[bool, typer.Option(help="Let it reach the internet.")] = True,
    user: User = None,
    output: Output = Format.AUTO,
) -> None:
    """Start a sandbox and open a shell in it; it goes on when the shell ends."""
    body: dict[str, Any] = {
        "templateID": template,
        "timeout": timeout,
        "envVars": pairs(env, "--env"),
        "metadata": pairs(metadata, "--metadata"),
        "autoPause": _pause_at_expiry() if auto_pause is None else auto_pause,
    }
    if auto_resume:
        body["autoResume"] = {"enabled": True}
    if not internet:
        body["allow_internet_access"] = False

    async def work(api: Api) -> int:
        made = await api.create(body, secure=secure)
        if detach or not sys.stdin.isatty():
            show_one(made, made["sandboxID"], output)
            return 0
        typer.echo(f"{made['sandboxID']} (ends in {timeout} s; exit leaves it running)", err=True)
        async with await api.inside(made["sandboxID"], resume_for=timeout) as inside:
            return await attach_shell(inside, user=user, cwd=None)

    raise typer.Exit(with_api(work))


def connect(sandbox: SandboxId, user: User = None, cwd: Cwd = None) -> None:
    """Open a shell in a sandbox. A paused one is resumed first; how long it lives is not changed otherwise."""

    async def work(api: Api) -> int:
        async with await api.inside(sandbox, resume_for=RESUME_FOR_S) as inside:
            return await attach_shell(inside, user=user, cwd=cwd)

    raise typer.Exit(with_api(work))


def exec_(
    context: typer.Context,
    sandbox: SandboxId,
    user: User = None,
    cwd: Cwd = None,
    env: Env = None,
    stdin: Annotated[
        bool, typer.Option(help="Pass standard input on; --no-stdin leaves it to a loop around this command.")
    ] = True,
) -> None:
    """Run a command in a sandbox: forkyard exec [OPTIONS] ID CMD [ARGS...]

    Standard input, output and error pass through as bytes; the exit code is the command's (125: it could not be run,
    128 + number: it died of a signal). A paused sandbox is resumed first.
    """
    if sandbox.startswith("-"):
        fail(f"{sandbox}: no such option of exec", USAGE)
    command = context.args[1:] if context.args[:1] == ["--"] else context.args
    if not command:
        fail("which command? forkyard exec [OPTIONS] ID CMD [ARGS...]", USAGE)
    if context.args[0].startswith("-") and context.args[0] != "--":
        fail(f"{context.args[0]}: options stand before the sandbox: forkyard exec [OPTIONS] ID CMD", USAGE)
    envs = pairs(env, "--env")

    async def work(api: Api) -> int:
        async with await api.inside(sandbox, resume_for=RESUME_FOR_S) as inside:
            return await execute(inside, command, user=user, cwd=cwd, envs=envs, stdin=stdin)

    raise typer.Exit(with_api(work, failed=OWN_FAILURE))


def list_(
    state: Annotated[str | None, typer.Option(help="running, paused or both (comma).")] = None,
    metadata: Annotated[
        list[str] | None, typer.Option("--metadata", "-m", help="KEY=VALUE, repeatable.")
    ] = None,
    output: Output = Format.AUTO,
) -> None:
    """List sandboxes, newest first."""

    async def work(api: Api) -> list[dict[str, Any]]:
        return [item async for item in api.sandboxes(states=state, metadata=pairs(metadata, "--metadata"))]

    show(with_api(work), _COLUMNS, output, empty="no sandboxes; `forkyard start` makes one")


def pause(
    sandbox: SandboxId,
    memory: Annotated[
        bool, typer.Option(help="Keep memory and processes; --no-memory keeps the files only.")
    ] = True,
) -> None:
    """Pause a sandbox: it uses no CPU and no memory until it is resumed."""
    with_api(lambda api: api.pause(sandbox, memory=memory))
    note(f"{sandbox} is paused" + ("" if memory else ", with its files only"))


def resume(
    sandbox: SandboxId,
    timeout: Timeout = 300,
    memory: Annotated[bool, typer.Option(help="--no-memory starts afresh from its files.")] = True,
    output: Output = Format.AUTO,
) -> None:
    """Resume a paused sandbox. A running one lives at least that long."""
    resumed = with_api(lambda api: api.connect(sandbox, timeout=timeout, memory=memory))
    done = f"{resumed['sandboxID']} is running"
    show_one(resumed, done, output)
    if wants_json(output):
        note(done)


def fork(
    sandbox: SandboxId,
    count: Annotated[int, typer.Option("--count", "-n", help="How many children (1 to 100).")] = 1,
    timeout: Annotated[
        int | None,
        typer.Option("--timeout", "-t", help="Seconds to live; as long as the source by default."),
    ] = None,
    output: Output = Format.AUTO,
) -> None:
    """Fork a running sandbox: children with its memory, processes and files, each independent from then on."""

    async def work(api: Api) -> list[dict[str, Any]]:
        seconds = timeout if timeout is not None else _left(await api.sandbox(sandbox))
        return await api.fork(sandbox, count=count, timeout=seconds)

    results = with_api(work)
    show(
        [result.get("sandbox") or {"error": result["error"]} for result in results],
        (
            ("ID", lambda s: str(s.get("sandboxID", ""))),
            *([("ERROR", _fork_error)] if any("sandbox" not in result for result in results) else []),
        ),
        output,
        empty="no children",
    )
    if any("sandbox" not in result for result in results):
        raise typer.Exit(FAILED)


def _fork_error(child: dict[str, Any]) -> str:
    return str(child["error"]["message"]) if "error" in child else ""


def timeout(
    sandbox: SandboxId, seconds: Annotated[int, typer.Argument(help="Seconds to live from now; 0: end now.")]
) -> None:
    """Set how long a sandbox lives from now, shorter or longer than before."""
    with_api(lambda api: api.set_timeout(sandbox, seconds))
    note(f"{sandbox} has {seconds} s to live from now" if seconds else f"{sandbox} has no time left")


def delete(
    sandboxes: Annotated[
        list[str], typer.Argument(help="Sandbox ids.", autocompletion=complete_sandbox, show_default=False)
    ],
) -> None:
    """End sandboxes for good, running or paused. All are tried; the exit code is that of the first failure."""

    async def work(api: Api) -> list[ForkyardError]:
        errors: list[ForkyardError] = []
        for sandbox in sandboxes:
            try:
                await api.kill(sandbox)
            except ServerUnreachable:
                raise
            except ForkyardError as error:
                typer.echo(f"forkyard: {plain(error.message)}", err=True)
                errors.append(error)
        return errors

    errors = with_api(work)
    if errors:
        raise typer.Exit(exit_code(errors[0]))


def _left(sandbox: dict[str, Any]) -> int | None:
    """Seconds that a sandbox has to live."""
    ends = moment(sandbox["endAt"])
    return None if ends is None else max(1, math.ceil((ends - datetime.now(UTC)).total_seconds()))


def register(app: typer.Typer) -> None:
    panel = "Sandboxes"
    passing = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
    app.command(rich_help_panel=panel)(start)
    app.command(rich_help_panel=panel)(connect)
    app.command("cn", hidden=True)(connect)
    app.command("exec", rich_help_panel=panel, context_settings=passing)(exec_)
    app.command("list", rich_help_panel=panel)(list_)
    app.command("ls", hidden=True)(list_)
    app.command(rich_help_panel=panel)(pause)
    app.command(rich_help_panel=panel)(resume)
    app.command(rich_help_panel=panel)(fork)
    app.command(rich_help_panel=panel)(timeout)
    app.command(rich_help_panel=panel)(delete)
    app.command("rm", hidden=True)(delete)
