"""The sentences: how docstrings begin, words with a plainer one, and how long a sentence may be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.nodes_docs import MARK

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path
    for folder in ("ovserve", "benchmarks", "scripts", "examples", "graphs")
    for path in (ROOT / folder).rglob("*.py")
    if not path.name.endswith("_pb2.py")
)
GENERATED = {"api.md", "metrics.md"}
PAGES = [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").glob("*.md") if p.name not in GENERATED)]

# A docstring begins with its subject or with an imperative verb.
FUNCTION_WORDS = frozenset(
    [
        "of",
        "as",
        "what",
        "whether",
        "by",
        "for",
        "in",
        "to",
        "from",
        "at",
        "on",
        "with",
        "without",
        "where",
        "when",
        "while",
        "who",
        "whom",
        "whose",
        "which",
        "why",
        "how",
        "that",
        "than",
        "if",
        "unless",
        "until",
        "because",
        "since",
        "after",
        "before",
        "through",
        "beside",
        "and",
        "or",
        "but",
        "nor",
        "so",
        "yet",
        "not",
    ]
)
INSTEAD = {  # what is written: what to write
    r"\b(nobody|somebody)\b": "no one, other requests",
    r"\bbeside\b": "next to, besides, together with",
    r"\bhonour(s|ed|ing)?\b": "supported",
    r"\b(tell|tells|told)\b": "report, return, log",
    r"(?<!there )\b(is|are|was|were) no (?!longer\b|more\b|less\b)": "is not a",
    r", as (it|they) \b": "because",
}
ANY = re.compile("|".join(INSTEAD), re.IGNORECASE)
MAX_WORDS = 30
COMMENT = re.compile(r"(?:^|\s)# .*")
QUOTED = re.compile(r"```.*?```|`[^`]*`|\"[^\"\n]*\"", re.DOTALL)
ENDS = re.compile(r"(?<=[.!?;:])\s+|\n\s*\n|\n\s*[-*|] |\n {4,}")


def docstrings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """All docstrings below a node. Other statements are skipped: a walk over all nodes takes seconds."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        if text := ast.get_docstring(node):
            yield node.body[0].lineno, text
        for child in node.body:
            yield from docstrings(child)


def comments(source: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(source.splitlines(), 1):
        if found := COMMENT.search(line):
            yield number, found[0]


def wording(text: str) -> Iterator[str]:
    """What is wrong with the words of a text; code in it does not count."""
    if not ANY.search(text):
        return
    plain = QUOTED.sub("CODE", text)
    for pattern, better in INSTEAD.items():
        for found in re.finditer(pattern, plain, re.IGNORECASE):
            yield f"{found[0]!r}; write {better}"


def too_long(text: str) -> Iterator[str]:
    for sentence in ENDS.split(QUOTED.sub("CODE", text)):
        if sentence and len(words := sentence.split()) > MAX_WORDS:
            yield f"{len(words)} words: {' '.join(words[:8])} ..."


def beginning(text: str) -> Iterator[str]:
    first = re.match(r"\w+", text)
    if first and first[0].lower() in FUNCTION_WORDS:
        yield f"begins with {first[0]!r}: {text.splitlines()[0]}"


def test_the_rules_find_what_they_forbid() -> None:
    for text in ("Nobody asks", "it lies beside it", "is no option", "it is told", "gone, as it is old"):
        assert list(wording(text)), text
    for text in ("there is no option", "is no longer read", "besides", "`--reload_policy beside`"):
        assert not list(wording(text)), text
    assert list(beginning("Whether it is read."))
    assert not list(beginning("Return whether it is read."))
    assert list(too_long("word " * 31))
    assert not list(too_long("word " * 29 + "end. " + "word " * 29))


@pytest.mark.parametrize("folder", sorted({path.relative_to(ROOT).parts[0] for path in FILES}))
def test_docstrings_and_comments_are_plain(folder: str) -> None:
    faults = []
    for path in FILES:
        name = path.relative_to(ROOT)
        if name.parts[0] != folder:
            continue
        source = path.read_text()
        for line, text in docstrings(ast.parse(source)):
            faults += [f"{name}:{line}: {why}" for why in (*beginning(text), *wording(text), *too_long(text))]
        for line, text in comments(source):
            faults += [f"{name}:{line}: {why}" for why in wording(text)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_are_plain(path: Path) -> None:
    faults = [f"{path.name}: {why}" for why in wording(path.read_text().partition(MARK)[0])]
    assert not faults, "\n".join(faults)
