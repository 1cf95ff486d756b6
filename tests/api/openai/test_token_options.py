"""`logit_bias` and the number of top log-probabilities: what is accepted in which mode, of every style."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovserve.api.openai.sampling import MAX_BIAS, MAX_BIASES
from ovserve.errors import InvalidArgument, UnsupportedParameter
from ovserve.kinds.text.resource import ENDPOINTS
from ovserve.llm.chat_template import ChatTemplate
from ovserve.llm.decoding import MAX_ASSISTANT_TOKENS, Mode, refuse_combination
from ovserve.llm.grammar.constraint import Constraint
from ovserve.llm.model import ModelContext
from ovserve.llm.request import Sampling

VOCABULARY = 500
MODES: tuple[Mode, ...] = get_args(Mode)
OTHERS = [mode for mode in MODES if mode != "paged"]
MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"model": "m", "messages": MESSAGES},
    "azure/chat/completions/pass-through": {"model": "m", "messages": MESSAGES},
    "completions": {"model": "m", "prompt": "hi"},
    "responses": {"model": "m", "input": "hi"},
    "api/chat": {"model": "m", "messages": MESSAGES},
    "api/generate": {"model": "m", "prompt": "hi"},
}
OPENAI = [name for name in BODIES if not name.startswith("api/")]


def model(mode: Mode = "paged", **more: Any) -> ModelContext:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    return ModelContext(template=template, max_length=100, vocab_size=VOCABULARY, decoding=mode, **more)


def sampling(name: str, mode: Mode = "paged", body: bytes | None = None, **fields: Any) -> Sampling:
    endpoint = ENDPOINTS[name]
    text = json.dumps(BODIES[name] | fields).encode() if body is None else body
    return endpoint.to_request(endpoint.decode(text), model(mode)).sampling


def top(name: str, count: int) -> dict[str, Any]:
    return {"logprobs": count} if name == "completions" else {"logprobs": True, "top_logprobs": count}


IDS = st.integers(0, VOCABULARY - 1)
VALUES = st.floats(-MAX_BIAS, MAX_BIAS) | st.integers(-MAX_BIAS, MAX_BIAS)


@given(bias=st.dictionaries(IDS, VALUES, max_size=40), name=st.sampled_from(OPENAI))
def test_a_bias_reaches_the_engine_as_it_is(bias: dict[int, float], name: str) -> None:
    made = sampling(name, logit_bias={str(id_): value for id_, value in bias.items()})
    assert made.logit_bias == tuple(sorted((id_, float(value)) for id_, value in bias.items()))


@pytest.mark.parametrize("name", OPENAI)
def test_a_stop_token_outside_of_the_vocabulary_is_refused(name: str) -> None:
    assert sampling(name, stop_token_ids=[0, VOCABULARY - 1]).stop_token_ids == (0, VOCABULARY - 1)
    says = f"stop_token_ids: token id {VOCABULARY} is not in the vocabulary of {VOCABULARY}"
    with pytest.raises(InvalidArgument, match=says) as caught:
        sampling(name, stop_token_ids=[VOCABULARY, 1])
    assert caught.value.param == "stop_token_ids"


def test_a_whole_number_written_as_a_float_does_not_spoil_a_bias() -> None:
    made = sampling("completions", max_tokens=5.0, logit_bias={"5": 1.5, "0": 2})
    assert (made.max_tokens, made.logit_bias) == (5, ((0, 2.0), (5, 1.5)))


@given(key=st.text(max_size=12), value=VALUES)
def test_a_key_is_a_token_id_or_a_400(key: str, value: float) -> None:
    right = key.isascii() and key.isdigit() and str(int(key)) == key and int(key) < VOCABULARY
    if right:
        made = sampling("completions", logit_bias={key: value})
        assert made.logit_bias == ((int(key), float(value)),)
        return
    with pytest.raises(InvalidArgument) as caught:
        sampling("completions", logit_bias={key: value})
    assert caught.value.param == "logit_bias"


@given(value=st.floats().filter(lambda value: not abs(value) <= MAX_BIAS))
def test_no_other_number_is_a_bias(value: float) -> None:
    with pytest.raises(InvalidArgument, match=r"logit_bias|not valid JSON"):
        sampling("chat/completions", logit_bias={"5": value})


@pytest.mark.parametrize(
    "key", ["01", "-0", "-1", "+1", " 1", "1 ", "1\n", "1.0", "1e2", "", "a", "٣", "1" * 10]
)
def test_an_id_has_one_spelling(key: str) -> None:
    with pytest.raises(InvalidArgument, match="logit_bias: a key is wrong") as caught:
        sampling("chat/completions", logit_bias={"1": 1, key: 1})
    assert json.dumps(key, ensure_ascii=False) in str(caught.value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("1e999", "logit_bias: number out of range"),
        ("NaN", "not valid JSON"),
        ("Infinity", "not valid JSON"),
        ("-Infinity", "not valid JSON"),
        ("null", "logit_bias.7: expected `float`, got null"),
        ("true", "logit_bias.7: expected `float`, got true"),
        ('"1"', 'logit_bias.7: expected `float`, got "1"'),
        ("100.5", "logit_bias.7: expected `float` <= 100.0, got 100.5"),
        ("-101", "logit_bias.7: expected `float` >= -100.0, got -101"),
    ],
)
def test_a_value_is_a_finite_number_in_range(value: str, says: str) -> None:
    body = f'{{"model": "m", "prompt": "hi", "logit_bias": {{"3": 1, "7": {value}}}}}'
    with pytest.raises(InvalidArgument, match=".") as caught:
        sampling("completions", body=body.encode())
    assert says in str(caught.value)


@pytest.mark.parametrize("wrong", [[], [[5, 1]], "5", 5, True])
def test_a_bias_is_an_object(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="logit_bias: expected `object") as caught:
        sampling("chat/completions", logit_bias=wrong)
    assert caught.value.param == "logit_bias"


def test_a_bias_is_bounded_in_length() -> None:
    """A vocabulary of so few ids is no bound of its own."""
    wide = ENDPOINTS["completions"]
    for count, fits in ((MAX_BIASES, True), (MAX_BIASES + 1, False)):
        fields = {"logit_bias": {str(i): 1 for i in range(count)}}
        body = json.dumps(BODIES["completions"] | fields).encode()
        if fits:
            request = wide.to_request(wide.decode(body), ModelContext(decoding="paged"))
            assert len(request.sampling.logit_bias) == count
            continue
        with pytest.raises(InvalidArgument, match=f"logit_bias: expected `object` of length <= {MAX_BIASES}"):
            wide.decode(body)


@pytest.mark.parametrize("name", OPENAI)
def test_an_id_outside_of_the_vocabulary_is_named(name: str) -> None:
    assert sampling(name, logit_bias={str(VOCABULARY - 1): -100}).logit_bias == ((VOCABULARY - 1, -100.0),)
    with pytest.raises(InvalidArgument, match="token id 500 is not in the vocabulary of 500") as caught:
        sampling(name, logit_bias={"3": 1, str(VOCABULARY): 1})
    assert caught.value.param == "logit_bias"


@pytest.mark.parametrize("mode", OTHERS)
@pytest.mark.parametrize("name", OPENAI)
def test_other_engines_have_no_bias(name: str, mode: Mode) -> None:
    assert sampling(name, mode, logit_bias={}).logit_bias == ()
    assert sampling(name, mode, logit_bias=None).logit_bias == ()
    with pytest.raises(UnsupportedParameter, match="the engine has no bias on single tokens") as caught:
        sampling(name, mode, logit_bias={"5": 1, "6": 2})
    assert caught.value.param == "logit_bias"
    assert 'logit_bias: {"5":1,...}' in str(caught.value)


@pytest.mark.parametrize("name", BODIES)
def test_as_many_top_logprobs_as_the_engine_knows(name: str) -> None:
    param = "logprobs" if name == "completions" else "top_logprobs"
    for count in range(21):
        made = sampling(name, **top(name, count))
        assert (made.logprobs, made.top_logprobs) == (True, count)
    with pytest.raises(InvalidArgument, match=f"{param}: expected `int` <= 20, got 21"):
        sampling(name, **top(name, 21))
    for mode in OTHERS:
        assert sampling(name, mode, **top(name, 1)).top_logprobs == 1
        with pytest.raises(UnsupportedParameter, match="the engine knows the chosen token only") as caught:
            sampling(name, mode, **top(name, 2))
        assert caught.value.param == param
        assert "got 2" in str(caught.value)


def test_no_top_logprobs_without_logprobs() -> None:
    assert sampling("api/chat", top_logprobs=5).top_logprobs == 0
    assert sampling("responses", top_logprobs=5).logprobs
    with pytest.raises(InvalidArgument, match="only allowed with logprobs: true"):
        sampling("chat/completions", top_logprobs=5)


@pytest.mark.parametrize(
    ("asked", "model_has", "drafted"),
    [
        (None, None, None),
        (0, None, 0),
        (0, 7, 0),
        (5, None, 5),
        (5, 7, 5),
        (MAX_ASSISTANT_TOKENS, None, MAX_ASSISTANT_TOKENS),
        (None, 7, 7),
        (None, 0, None),
    ],
)
def test_the_paged_engine_drafts_as_asked(
    asked: int | None, model_has: int | None, drafted: int | None
) -> None:
    endpoint = ENDPOINTS["chat/completions"]
    body = json.dumps(BODIES["chat/completions"] | {"num_assistant_tokens": asked}).encode()
    defaults = {} if model_has is None else {"num_assistant_tokens": model_has}
    made = endpoint.to_request(endpoint.decode(body), model(defaults=defaults))
    assert made.sampling.num_assistant_tokens == drafted
    assert made.presentation.ignored_params == ()


@pytest.mark.parametrize(
    "asked",
    [
        Sampling(logprobs=True, top_logprobs=20, logit_bias=((5, 1.0),), echo=True, min_tokens=9),
        Sampling(temperature=1.0, seed=4, num_assistant_tokens=0),
        Sampling(num_assistant_tokens=MAX_ASSISTANT_TOKENS),
        Sampling(beams=4, beam_groups=2, diversity_penalty=1.0, n=2),
        Sampling(constraint=Constraint('{"type":"json_schema"}', "response_format"), logit_bias=((5, 1.0),)),
        Sampling(constraint=Constraint("{}", "tool_choice"), min_tokens=1),
    ],
)
def test_what_the_paged_engine_admits(asked: Sampling) -> None:
    """A graph's own node may have made the sampling, so the engine judges it again."""
    refuse_combination("paged", asked)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (Sampling(constraint=Constraint("{}", "response_format"), beams=2), "response_format"),
        (Sampling(logprobs=True, top_logprobs=21), "top_logprobs"),
        (Sampling(num_assistant_tokens=MAX_ASSISTANT_TOKENS + 1), "num_assistant_tokens"),
    ],
)
def test_what_the_paged_engine_refuses(asked: Sampling, param: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        refuse_combination("paged", asked)
    assert caught.value.param == param


@pytest.mark.parametrize("mode", OTHERS)
@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (Sampling(logprobs=True, top_logprobs=2), "top_logprobs"),
        (Sampling(logit_bias=((5, 1.0),)), "logit_bias"),
    ],
)
def test_what_no_other_engine_admits(mode: Mode, asked: Sampling, param: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        refuse_combination(mode, asked)
    assert caught.value.param == param
