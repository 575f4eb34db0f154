"""`jobq completion SHELL`: what a shell needs to complete jobq's commands and options."""

from typing import Final

import click
from click.shell_completion import get_completion_class

from jobq.cli.common import ExampleCommand
from jobq.cli.display import terminal

VARIABLE: Final = "_JOBQ_COMPLETE"  # through which a shell asks for completions, see main.py


@click.command(
    cls=ExampleCommand,
    examples=(
        'eval "$(jobq completion bash)"                                    # in ~/.bashrc',
        'eval "$(jobq completion zsh)"                                     # in ~/.zshrc, after compinit',
        "jobq completion fish > ~/.config/fish/completions/jobq.fish",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> int:
    """Print the completion script of a shell."""
    found = get_completion_class(shell)
    assert found is not None, "click knows the three"
    terminal.put_text(found(ctx.find_root().command, {}, "jobq", VARIABLE).source())
    return 0
