"""--model_alias: other names for what is served."""

from __future__ import annotations

import pytest

from ovserve.errors import InvalidArgument
from ovserve.serving.settings import Aliases


def test_an_alias_names_one_or_the_only_servable() -> None:
    aliases = Aliases.parse("gpt-4o=small, claude-*")
    assert aliases.target("gpt-4o", lambda: ["small", "large"]) == "small"
    assert aliases.target("claude-opus", lambda: ["small", "large"]) == "claude-opus"
    assert aliases.target("claude-opus", lambda: ["small"]) == "small"
    assert aliases.target("large", lambda: ["small", "large"]) == "large"


def test_a_servable_of_that_name_comes_first() -> None:
    assert Aliases.parse("*=small").target("large", lambda: ["small", "large"]) == "large"


@pytest.mark.parametrize(
    ("aliases", "name", "means"),
    [
        ("", "large:latest", "large"),
        ("*=small", "large:latest", "large"),
        ("gpt-4o=small", "gpt-4o:latest", "small"),
        ("a:latest=small", "a:latest", "small"),
        ("", "other:latest", "other:latest"),
        ("", "large:latest:latest", "large:latest:latest"),
        ("", "large:8b", "large:8b"),
    ],
)
def test_a_name_may_have_ollamas_tag(aliases: str, name: str, means: str) -> None:
    assert Aliases.parse(aliases).target(name, lambda: ["small", "large"]) == means


def test_a_tag_may_be_a_part_of_a_name() -> None:
    assert Aliases().target("x:latest", lambda: ["x", "x:latest"]) == "x:latest"


def test_only_the_star_is_a_pattern() -> None:
    aliases = Aliases.parse("a[bc]?=small")
    assert aliases.target("a[bc]?", lambda: ["small"]) == "small"
    assert aliases.target("abx", lambda: ["small"]) == "abx"


def test_patterns_and_names_that_are_not_served_are_not_listed() -> None:
    assert Aliases.parse("x=small,y=gone,z*").listed(["small"]) == [("x", "small")]


@pytest.mark.parametrize("text", ["=small", "x=", "a,b="])
def test_half_an_alias_is_an_error(text: str) -> None:
    with pytest.raises(InvalidArgument, match="--model_alias: expected ALIAS"):
        Aliases.parse(text)


def test_an_alias_that_means_nothing_is_a_warning() -> None:
    aliases = Aliases.parse("gpt-4o, b=gone")
    assert aliases.faults(["small"]) == ["--model_alias: b=gone: 'gone' is not served"]
    alone, gone = aliases.faults(["small", "large"])
    assert "gpt-4o: 2 graphs are served, so it means none of them; write gpt-4o=NAME" in alone
    assert "'gone'" in gone
