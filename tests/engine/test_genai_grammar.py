"""Grammars in the real engine: what it enforces, what it does not, and what makes a constraint exclude other
things. Each refusal is proven by running the engine without it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import openvino_genai as ov_genai
import pytest

from ovserve.engine.protocol.messages import Add, Compiled, Failed, StepItem
from ovserve.engine.protocol.specs import TextSpec
from ovserve.errors import Internal, InvalidArgument, LoadError
from ovserve.kinds.text.worker.genai import GenAIEngine, continuous
from ovserve.kinds.text.worker.genai.grammar import GrammarCompiler, _config, _init_times, _one_token
from ovserve.llm.grammar import constraint as c
from ovserve.llm.grammar.writer import compact, write
from ovserve.llm.request import Sampling

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
HELLO = CHAT.format("Write a long text about a dragon.")
PIECES: list[tuple[c.Format, str]] = [
    (c.regex("[0-9]{3}-[0-9]{4}"), r"[0-9]{3}-[0-9]{4}"),
    (c.either([c.literal("red"), c.literal("green")]), "red|green"),
    (c.ebnf('root ::= "a" b\nb ::= "b" | "c"'), "a[bc]"),
    (c.sequence(c.literal("x="), c.json_schema({"type": "boolean"})), "x=(true|false)"),
    (c.sequence(c.optional(c.literal("well, ")), c.literal("no")), "(well, )?no"),
    (c.tag("<a>", c.regex("[a-z]{1,5}"), "</a>"), "<a>[a-z]{1,5}</a>"),
    (c.tags([c.tag("<a>", c.regex("[a-z]"), "</a>")], ";", only_one=True), "<a>[a-z]</a>"),
]  # fmt: skip
WRONG: list[tuple[c.Format, str]] = [
    (c.json_schema({"type": "banana"}), 'Unsupported type "banana"'),
    (c.json_schema({"type": "object", "properties": []}), "properties must be an object"),
    (c.json_schema({"$ref": "#/$defs/none"}), "Cannot find field"),
    (c.json_schema(False), "cannot accept any value"),
    (c.json_schema({"$ref": "#"}), "no text matches it"),
    (c.json_schema({"type": "string", "minLength": 5, "maxLength": 2}), "greater than"),
    (c.regex("[a"), "Unclosed '['"),
    (c.regex("(?=a)b"), "Lookahead"),
    (c.ebnf("root ::= nope"), 'Rule "nope" is not defined'),
    (c.ebnf("root ::= root"), "no text matches it"),
    ({"type": "zebra"}, "Format type not recognized: zebra"),
]  # fmt: skip


@pytest.fixture(scope="module")
def engine(short_model: Path) -> GenAIEngine:
    return GenAIEngine(TextSpec(str(short_model)))


@pytest.fixture(autouse=True)
def nothing_is_left_behind(engine: GenAIEngine) -> Iterator[None]:
    yield
    for id_ in engine.live():
        engine.abort(id_)
    while engine.busy:
        engine.step()


def compiled(engine: GenAIEngine, form: c.Format) -> str:
    """What is wrong with it, or ""."""
    engine.grammars.compile(-1, c.structural_tag(c.constrain(form, "x").format))
    while not (words := engine.grammars.compiled()):
        time.sleep(0.001)
    [word] = words
    assert isinstance(word, Compiled | Failed)
    return word.message if isinstance(word, Failed) else ""


def generate(
    engine: GenAIEngine, form: c.Format, prompt: str = HELLO, **sampling: Any
) -> tuple[str, str | None]:
    """Text and finish reason. The combinations that are refused go in by the back door."""
    assert compiled(engine, form) == ""
    sampling = {"temperature": 0.0, "max_tokens": 40, **sampling, "constraint": c.constrain(form, "x")}
    engine.add(Add(1, prompt, False, Sampling(**sampling)))
    texts: dict[int, str] = {}
    finish = None
    while engine.live():
        engine.step()
        for word in engine.collect():
            assert isinstance(word, StepItem)
            texts[word.index] = texts.get(word.index, "") + word.text
            finish = word.finish_reason or finish
    return texts[0], finish


@pytest.mark.parametrize(("form", "pattern"), PIECES)
def test_what_is_built_of_pieces_is_enforced(engine: GenAIEngine, form: c.Format, pattern: str) -> None:
    import re

    for temperature in (0.0, 2.0):
        text, finish = generate(engine, form, temperature=temperature)
        assert re.fullmatch(pattern, text), text
        assert finish == "stop"


@pytest.mark.parametrize(
    ("form", "says"), [*WRONG, (c.sequence(c.any_text(), c.literal("a")), "Only the last element")]
)
def test_what_does_not_compile_says_why_and_hurts_nobody(
    engine: GenAIEngine, form: c.Format, says: str
) -> None:
    engine.add(Add(7, HELLO, False, Sampling(temperature=0.0, max_tokens=8)))
    engine.step()
    fault = compiled(engine, form)
    assert says in fault
    assert "/" not in fault.replace("$defs", "").split(" ")[0], "no path of the library's source"
    tokens = 0
    while engine.live():
        engine.step()
        tokens += sum(word.tokens for word in engine.collect() if isinstance(word, StepItem))
    assert tokens <= 8


def test_a_grammar_that_was_not_compiled_is_not_admitted(engine: GenAIEngine) -> None:
    unknown = c.constrain(c.regex("never seen"), "x")
    with pytest.raises(Internal, match="not compiled"):
        engine.add(Add(1, HELLO, False, Sampling(constraint=unknown)))


def test_the_step_finds_what_the_thread_compiled(engine: GenAIEngine) -> None:
    """Else it would compile again, for seconds, and hold up every neighbour. The library counts its time."""
    shares = []
    for letters in ("cde", "fgh", "ijk"):  # the best of three: a step may be held up on a busy machine
        form = c.regex(f"((a|b|{letters}){{20}}){{20}}")
        began = time.monotonic()
        assert compiled(engine, form) == ""
        thread = time.monotonic() - began
        tag = c.structural_tag(c.constrain(form, "x").format)
        [answer] = engine._pipeline.generate([_one_token()], [_config(tag, 1)])
        [step] = answer.perf_metrics.raw_metrics.grammar_compile_times
        shares.append(step / 1e6 / thread)
    assert min(shares) < 1 / 4, "what is left is parsing"


def test_forgetting_makes_another_compiler_and_hurts_nobody(engine: GenAIEngine) -> None:
    wanted, other = c.regex("[0-9]{30}"), c.regex("[a-z]{3}")
    assert compiled(engine, wanted) == compiled(engine, other) == ""
    before = _init_times(engine._answer)
    engine.add(Add(1, HELLO, False, Sampling(temperature=0.0, constraint=c.constrain(wanted, "x"))))
    engine.step()
    engine.grammars.compile(-2, c.structural_tag(c.constrain(c.regex("[b-y]{2}"), "x").format))
    engine.grammars.clear()
    engine.grammars.compile(-3, c.structural_tag(c.constrain(other, "x").format))
    while engine.grammars.compiling:
        engine.grammars.compiled()
    text = ""
    while engine.live():
        text += "".join(word.text for word in engine.collect() if isinstance(word, StepItem))
        engine.step()
    text += "".join(word.text for word in engine.collect() if isinstance(word, StepItem))
    assert text.isdigit()
    assert len(text) == 30
    for dropped in (wanted, c.regex("[b-y]{2}")):
        with pytest.raises(Internal, match="not compiled"):
            engine.add(Add(2, HELLO, False, Sampling(constraint=c.constrain(dropped, "x"))))
    assert len(generate(engine, other)[0]) == 3
    assert _init_times(engine._answer) != before


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        ({"type": "string", "pattern": r"^(a*)\1$"}, None),
        ({"$ref": "https://example.com/a.json"}, None),
    ],
)  # fmt: skip
def test_what_is_reported_as_not_enforced_is_not(
    engine: GenAIEngine, schema: dict[str, Any], wrong: Any
) -> None:
    assert write(schema).unenforced
    text, _ = generate(engine, compact(schema))
    if wrong is not None:
        assert json.loads(text) == wrong
        assert not jsonschema_rs.is_valid(schema, wrong)


# ---- why the combinations are refused


@pytest.fixture
def open_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ovserve.engine.protocol.admission.refuse_combination", lambda mode, sampling: None)


@pytest.mark.parametrize("sampling", [{"beams": 2}, {"ignore_eos": True}, {"min_tokens": 20}])
def test_refused(engine: GenAIEngine, sampling: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        generate(engine, c.regex("[0-9]{2}"), **sampling)


@pytest.mark.usefixtures("open_door")
@pytest.mark.parametrize(
    "sampling", [{"beams": 2}, {"ignore_eos": True}]
)  # min_tokens repeats the end's tokens
def test_because_the_engine_does_not_enforce_it(engine: GenAIEngine, sampling: dict[str, Any]) -> None:
    text, _ = generate(engine, c.regex("[0-9]{2}"), **sampling)
    assert not (text.isdigit() and len(text) == 2), text


def test_a_compiler_for_another_number_of_logits_is_not_used(
    tiny_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[GrammarCompiler] = []

    def larger(tokenizer: ov_genai.Tokenizer, vocab_size: int) -> GrammarCompiler:
        made.append(GrammarCompiler(tokenizer, len(tokenizer.get_vocab()) + 64))
        return made[0]

    monkeypatch.setattr(continuous, "prepare", larger)
    other = GenAIEngine(TextSpec(tiny_path))
    assert other.facts.compiles_grammars
    assert other.grammars._compiler is not made[0]
    assert compiled(other, c.regex("[0-9]{7}")) == ""


def test_a_compiler_that_was_not_ready_in_time_is_made_later(
    tiny_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, failed = GrammarCompiler.__init__, []

    def failing_once(self: GrammarCompiler, tokenizer: ov_genai.Tokenizer, logits: int) -> None:
        if not failed:
            failed.append(logits)
            raise RuntimeError("not yet")
        make(self, tokenizer, logits)

    monkeypatch.setattr(GrammarCompiler, "__init__", failing_once)
    other = GenAIEngine(TextSpec(tiny_path))
    assert len(failed) == 1
    assert other.facts.compiles_grammars
    assert compiled(other, c.regex("[0-9]{7}")) == ""


def test_a_table_of_tokens_that_raises_fails_the_load(
    tiny_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(*_: object) -> None:
        raise RuntimeError("no such vocabulary")

    monkeypatch.setattr(continuous, "prove_tokens", raising)
    with pytest.raises(LoadError, match="no such vocabulary"):
        GenAIEngine(TextSpec(tiny_path))
