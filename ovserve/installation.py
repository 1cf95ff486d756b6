"""Find how this ovserve was installed, and the command that adds an extra to it.

A command that does not work is worse than none. From a checkout the checkout is installed again with the
extra. Otherwise the extra's own requirements are installed, which works for a wheel from anywhere.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from importlib.metadata import Distribution

NAME = "ovserve"
XGRAMMAR = "0.2.8"  # an interface of its own that is not public
_OF_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w-]+)['"]""")


def command() -> str:
    """Return how to call this ovserve from a shell: by its name where that is on the PATH."""
    script = Path(sys.argv[0])
    path = shutil.which(NAME)
    if path is not None and script.exists() and Path(path).samefile(script):
        return NAME
    if script.name == NAME and script.exists():
        return shlex.quote(sys.argv[0])
    return f"{shlex.quote(sys.executable)} -m {NAME}"


def extra(name: str) -> str:
    """Return how to install an extra, as `install it: COMMAND`."""
    from importlib import metadata  # a third of what a sandbox process would import

    try:
        distribution = metadata.distribution(NAME)
    except metadata.PackageNotFoundError:  # its source is on the path
        return f"in the checkout of {NAME}, install it: pip install -e '.[{name}]'"
    if (checkout := _checkout(distribution)) is not None:
        return f"install it: {_pip()} -e {shlex.quote(f'{checkout}[{name}]')}"
    if not (packages := requirements(distribution.requires or [], name)):
        return f"this {NAME} has no extra {name!r}; install a newer one"
    listed = " ".join(map(shlex.quote, packages))
    prefix = Path(sys.prefix).parts
    if "pipx" in prefix:
        return f"install it: pipx inject {NAME} {listed}"
    if "uv" in prefix and "tools" in prefix:
        return f"install it: uv tool install {NAME} {' '.join(f'--with {shlex.quote(w)}' for w in packages)}"
    return f"install it: {_pip()} {listed}"


def requirements(requires: list[str], name: str) -> list[str]:
    """Return the requirements of an extra, from the lines of a distribution's metadata."""
    matching = []
    for line in requires:
        requirement, _, marker = line.partition(";")
        if (of := _OF_EXTRA.search(marker)) and of[1] == name:
            matching.append(requirement.strip())
    return matching


def _checkout(distribution: Distribution) -> Path | None:
    """Return the directory of an editable installation."""
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return None
    url = urlsplit(str(origin.get("url", "")))
    if not origin.get("dir_info", {}).get("editable") or url.scheme != "file":
        return None
    return Path(unquote(url.path))


def _pip() -> str:
    """Return the command for this environment, which need not be the active one. One of uv has no pip."""
    python = shlex.quote(sys.executable)
    if importlib.util.find_spec("pip") is None:
        return f"uv pip install --python {python}"
    return f"{python} -m pip install"


def masks_grammars() -> bool:
    """Return whether the packages are there that the paged engine needs for grammars."""
    from importlib import metadata

    try:
        version = metadata.version("xgrammar")
    except metadata.PackageNotFoundError:
        return False
    return version == XGRAMMAR and importlib.util.find_spec("tvm_ffi") is not None
