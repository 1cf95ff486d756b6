"""Print a dependency group of pyproject.toml, one requirement a line: the pip of Python 3.11 cannot read them."""

import sys
import tomllib
from pathlib import Path

groups = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["dependency-groups"]
print("\n".join(r.replace(" ", "") for r in groups[sys.argv[1]]))
