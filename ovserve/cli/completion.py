"""`ovserve completion`: print a script that completes commands, options and models in a shell."""

from __future__ import annotations

import argparse

from ovserve.cli.parser import Commands

SHELLS = ("bash", "zsh", "fish")
# The command itself lists the words, so a script stays true when options are added.
BASH = """\
_ovserve() {
    local words
    words=$(ovserve completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _ovserve ovserve
"""
ZSH = """\
#compdef ovserve
_ovserve() {
    local -a found
    found=(${(f)"$(ovserve completion words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    compadd -a found || _files
}
compdef _ovserve ovserve
"""
FISH = """\
function __ovserve
    set -l given (commandline -opc) (commandline -ct)
    ovserve completion words $given[2..-1] 2>/dev/null
end
complete -c ovserve -a '(__ovserve)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
TAKE_MODELS = ("run", "serve", "pull", "show", "rm")


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "completion",
        help="print a script for completion in a shell",
        description='Prints the script. In bash: eval "$(ovserve completion bash)"; in zsh the same with '
        "zsh; in fish: ovserve completion fish | source.",
    )
    parser.add_argument("shell", choices=[*SHELLS, "words"], metavar="|".join(SHELLS))
    parser.add_argument("given", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    text = SCRIPTS.get(arguments.shell)
    if text is None:
        text = "".join(f"{word}\n" for word in _words(arguments.given))
    print(text, end="")  # noqa: T201
    return 0


def _words(words: list[str]) -> list[str]:
    """Return what may stand in place of the last word."""
    from ovserve.cli.commands import build_parser

    *before, begun = words or [""]
    (commands,) = [a for a in build_parser()._actions if isinstance(a.choices, dict)]
    choices: dict[str, argparse.ArgumentParser] = dict(commands.choices or {})
    command = next((word for word in before if word in choices), "")
    if not command:
        return [word for word in [*choices, "--help", "--version"] if word.startswith(begun)]
    actions = [a for a in choices[command]._actions if a.help != argparse.SUPPRESS]
    flags = {name: action for action in actions for name in action.option_strings}
    if before[-1] in flags and (values := flags[before[-1]]).nargs != 0:
        alternatives = (
            values.metavar.split("|") if isinstance(values.metavar, str) and "|" in values.metavar else ()
        )
        return [str(value) for value in values.choices or alternatives if str(value).startswith(begun)]
    if begun.startswith("-"):
        return [name for name in flags if name.startswith(begun)]
    fixed = [str(v) for a in actions if not a.option_strings for v in a.choices or ()]
    return [name for name in [*fixed, *_models(command)] if name.startswith(begun)]


def _models(command: str) -> list[str]:
    if command not in TAKE_MODELS:
        return []
    from ovserve.cli.local import names_in, repository
    from ovserve.pull.packaged import MODELS

    here = names_in(repository())
    return sorted({*here, *(MODELS if command in ("run", "serve", "pull") else ())})
