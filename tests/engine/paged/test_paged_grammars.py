"""Compilation beside the steps: what fails, what is held, what is missing; and the library beside the other one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from ovserve.engine.protocol.messages import Compiled, Failed
from ovserve.errors import Internal, InvalidArgument, LoadError, ResourceExhausted
from ovserve.installation import XGRAMMAR
from ovserve.kinds.text.worker.genai.vocabulary import Vocabulary
from ovserve.kinds.text.worker.paged import grammars as paged_grammars
from ovserve.kinds.text.worker.paged.grammars import Grammars, prover
from ovserve.kinds.text.worker.paged.masks import Mask, Matcher, in_one_line, mask_bits
from ovserve.llm.grammar import constraint as c
from ovserve.llm.grammar.cost import PROBE_TOKENS
from ovserve.llm.grammar.writer import compact
from tests.engine.paged.conftest import Masks
from tests.engine.test_genai_grammar import WRONG
from tests.engine.test_grammar_cost import MEMORY, WORST
from tests.engine.walks import Walks
from tests.schemas import SCHEMAS

ROOT = Path(__file__).parents[3]
DEEP = c.ebnf("root ::= " + "(" * 50_000 + '"a"' + ")" * 50_000)


def tag(form: c.Format) -> str:
    return c.structural_tag(c.constrain(form, "x").format)


def answers(grammars: Grammars) -> list[Compiled | Failed]:
    words = []
    while grammars.compiling:
        words += grammars.compiled()
        time.sleep(0.001)
    return words


def allowed(matcher: Matcher) -> Mask:
    row = np.empty_like(matcher.stops)
    matcher.fill(row)
    return row & ~matcher.stops


@pytest.fixture(scope="module")
def vocabulary(masks: Masks) -> Vocabulary:
    return masks.vocabulary


def test_each_fails_alone_and_says_why(vocabulary: Vocabulary) -> None:
    grammars = Grammars(*vocabulary)
    forms = [(c.literal("good"), ""), *WRONG, (DEEP, "Nest layer"), (c.regex("[0-9]"), "")]
    for id_, (form, _) in enumerate(forms):
        grammars.compile(id_, tag(form))
    words = answers(grammars)
    assert [word.id for word in words] == list(range(len(forms)))
    for word, (form, says) in zip(words, forms, strict=True):
        if isinstance(word, Failed):
            assert says, form
            assert says in word.message
            assert word.kind == "invalid_argument"
            assert ".cc" not in word.message, "no path of the library's source"
            with pytest.raises(Internal, match="not compiled"):
                grammars.matcher(c.constrain(form, "x"))
        else:
            assert not says, form
            assert word.memory > 0
            assert not grammars.matcher(c.constrain(form, "x")).ended


def test_an_answer_keeps_a_grammar_that_was_forgotten(vocabulary: Vocabulary) -> None:
    grammars, form = Grammars(*vocabulary), c.constrain(c.literal("ab"), "x")
    grammars.compile(1, c.structural_tag(form.format))
    assert [word.id for word in answers(grammars)] == [1]
    matcher = grammars.matcher(form)
    grammars.clear()
    with pytest.raises(Internal, match="not compiled"):
        grammars.matcher(form)
    assert matcher.accept(vocabulary.texts.index(b"a"))
    assert matcher.accept(vocabulary.texts.index(b"b"))
    assert matcher.ended


def test_what_is_compiled_while_others_are_forgotten_is_held(vocabulary: Vocabulary) -> None:
    grammars, form = Grammars(*vocabulary), c.constrain(compact(SCHEMAS["nested"]), "x")
    grammars.compile(1, c.structural_tag(form.format))
    grammars.clear()
    assert isinstance(answers(grammars)[0], Compiled)
    assert not grammars.matcher(form).ended


def test_a_grammar_goes_on_behind_the_beginning_of_an_answer(vocabulary: Vocabulary) -> None:
    grammars, form = Grammars(*vocabulary), c.constrain(c.json_object(), "x")
    grammars.compile(1, c.structural_tag(form.format))
    assert isinstance(answers(grammars)[0], Compiled)
    matcher = grammars.matcher(msgspec.structs.replace(form, begun='{"a": 1, '))
    keys = [b'"', b"a", b'"']
    assert [matcher.accept(vocabulary.texts.index(text)) for text in keys[:2]] == [True, True]
    row = allowed(matcher)
    assert not mask_bits(row, vocabulary.logits)[vocabulary.texts.index(b'"')], "the object has this key"
    assert grammars.matcher(msgspec.structs.replace(form, begun='{"a": 1}')).may_end
    with pytest.raises(InvalidArgument, match=r"x: no answer in this format begins .*'Sure: '"):
        grammars.matcher(msgspec.structs.replace(form, begun="Sure: "))


@pytest.mark.parametrize(
    ("begun", "line"),
    [
        ('{"a":1,', '{"a": 1,'),
        ('\n{\n  "a" : "x, y:z \\" q" ,\n "b":[1,2 ]\n', '{"a": "x, y:z \\" q", "b": [1, 2]'),
        ('{"a": 1 ', '{"a": 1 '),
        ('{"a": 1 2', '{"a": 1 2'),
        ('{"a": "b:c, ', '{"a": "b:c, '),
    ],
)
def test_the_white_space_of_a_beginning_is_that_of_grammars(begun: str, line: str) -> None:
    assert in_one_line(begun) == line


def test_a_model_without_an_end_has_no_grammars(vocabulary: Vocabulary) -> None:
    grammars = Grammars(vocabulary.texts, (), vocabulary.logits)
    grammars.compile(1, tag(c.literal("a")))
    [word] = answers(grammars)
    assert isinstance(word, Failed)
    assert "names none" in word.message


@pytest.fixture(scope="module")
def prove(model_path: str) -> Callable[[str], str]:
    """It reads the whole vocabulary, in 1.5 s of CPU time."""
    return prover(model_path)


def test_the_proof(prove: Callable[[str], str]) -> None:
    assert prove(tag(compact(SCHEMAS["strings"]))) == ""
    assert "no text matches it" in prove(tag(c.ebnf('root ::= "a" x\nx ::= x')))
    assert "Unclosed" in prove(tag(c.regex("[a")))


@pytest.mark.usefixtures("vocabulary")
def test_a_grammar_whose_tokens_would_hold_up_the_steps_is_refused(
    prove: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ovserve.llm.grammar.cost.TOKEN_SECONDS", 1e-6)
    with pytest.raises(ResourceExhausted, match="s of CPU time, more than 1e-06 s"):
        prove(tag(c.ebnf('root ::= [^"]{0,9}')))


@pytest.mark.long
@pytest.mark.parametrize("name", WORST)
def test_what_needs_no_trial_takes_little_memory(vocabulary: Vocabulary, name: str) -> None:
    """The engine compiles these untried; in CPU time the worst takes 40 ms, and 16 for a mask."""
    grammars = Grammars(*vocabulary)
    grammars.compile(1, tag(WORST[name]))
    [word] = answers(grammars)
    assert isinstance(word, Compiled)
    assert 0 < word.memory < MEMORY
    matcher = grammars.matcher(c.constrain(WORST[name], "x"))
    for _ in range(PROBE_TOKENS):
        token = next(iter(np.flatnonzero(mask_bits(allowed(matcher), vocabulary.logits))), None)
        assert token is None or matcher.accept(int(token))


# ---- the package


def test_a_missing_package_is_named(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another version of it is on the path before it, and then none is on the path at all."""
    other = tmp_path / "xgrammar-9.9.9.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: xgrammar\nVersion: 9.9.9\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(LoadError, match=r"needs? xgrammar 0\.2\.8, and 9\.9\.9 is installed.*--no-deps"):
        paged_grammars.library.__wrapped__()
    has = [entry for entry in sys.path if any(Path(entry or ".").glob("xgrammar-*.dist-info"))]
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in has])
    with pytest.raises(LoadError, match=r"package xgrammar; install it: pip install --no-deps"):
        paged_grammars.library.__wrapped__()
    paged_grammars.library.cache_clear()
    try:
        grammars = Grammars(*vocabulary)
    finally:
        monkeypatch.undo()
        paged_grammars.library.cache_clear()
    grammars.compile(1, tag(c.literal("a")))
    [word] = answers(grammars)
    assert isinstance(word, Failed)
    assert "--no-deps xgrammar" in word.message


@pytest.mark.usefixtures("vocabulary")
def test_torch_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from ovserve.kinds.text.worker.paged.grammars import library\n"
        "library(); assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=230, cwd=ROOT)


def test_the_version_is_the_one_that_is_installed_for_tests() -> None:
    assert f'xgrammar = ["xgrammar=={XGRAMMAR}"]' in (ROOT / "pyproject.toml").read_text()


# ---- beside the one in the library's pipeline


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["strings", "numbers", "enum", "date", "array of objects", "anyOf", "optional"]
)
def test_both_libraries_admit_the_same_texts(masks: Masks, walks: Walks, name: str) -> None:
    form = compact(SCHEMAS[name])
    asked = c.constrain(form, "x")
    texts = [text.decode() for text, ended in (masks.anything(form, seed) for seed in range(4)) if ended]
    assert texts
    walks.learn(texts)
    assert [walks.tries(asked, text) for text in texts] == texts
    theirs = [text for text, ended in (walks.anything(asked, seed, 100) for seed in range(3)) if ended]
    assert all(masks.admits(form, text.encode()) for text in theirs)


@pytest.mark.long
@pytest.mark.parametrize(
    ("schema", "start"),
    [
        ({}, b'{"'),
        ({"type": "string"}, b'"'),
        ({"type": "string", "maxLength": 9}, b'"'),
        ({"type": "string", "pattern": "^[^a]*$", "maxLength": 9}, b'"'),
        ({"type": "string", "not": {"const": "x"}}, b'"'),
        ({"type": "object", "properties": {"k": {}}, "additionalProperties": True}, b'{"'),
    ],
)
def test_both_libraries_admit_all_bytes_but_those_of_surrogates(
    masks: Masks, walks: Walks, schema: Any, start: bytes
) -> None:
    form = compact(schema) if schema else c.json_object()
    for code in (0x80, 0x7FF, 0x800, 0xD7FF, 0xD800, 0xDBFF, 0xDC00, 0xDFFF, 0xE000, 0xFFFF, 0x10FFFF):
        char = chr(code).encode("utf-8", "surrogatepass")
        tokens = [masks.id_of[text] for text in (start, *(bytes([byte]) for byte in char))]
        is_text = not 0xD800 <= code <= 0xDFFF
        assert walks.begins(c.constrain(form, "x"), tokens) == is_text, hex(code)
        assert all(map(masks.matcher(form).accept, tokens)) == is_text, hex(code)


@pytest.mark.long
@pytest.mark.parametrize(
    ("low", "high"), [(0x80, 0xD7A3), (0x61AE, 0xA74E), (0x10000, 0x1F64F), (0x900, 0x1F64F), (0xE0, 0xFF)]
)
def test_both_libraries_admit_all_characters_of_a_range(
    masks: Masks, walks: Walks, low: int, high: int
) -> None:
    form = compact({"type": "string", "pattern": f"^[{chr(low)}-{chr(high)}]$"})
    middle = {high & ~0xFFF, (high & ~0xFFF) - 1, high & ~0x3F, low | 0x3F, low | 0xFFF}
    for code in sorted({low - 1, low, high, high + 1, *middle} - {*range(-1, 0x80)}):
        tokens = [masks.id_of[text] for text in (b'"', *(bytes([byte]) for byte in chr(code).encode()))]
        is_in = low <= code <= high
        assert walks.begins(c.constrain(form, "x"), tokens) == is_in, hex(code)
        assert all(map(masks.matcher(form).accept, tokens)) == is_in, hex(code)


@pytest.fixture(scope="module")
def walks(model_path: str) -> Walks:
    return Walks(model_path)
