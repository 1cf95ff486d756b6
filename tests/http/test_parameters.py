"""Every sampling parameter of the seeds shows its effect on the real engine (not only its acceptance)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.conftest import Server

STORY = [{"role": "user", "content": "Write a story about a cat."}]
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
FRANCE = "The capital of France is"


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0) as made:
        yield made


def chat(client: openai.OpenAI, **more: object) -> ChatCompletion:
    fields = {"model": "smollm2", "messages": STORY, "temperature": 0, "max_tokens": 16} | more
    return client.chat.completions.create(**fields)  # type: ignore[call-overload,no-any-return]


def completion(client: openai.OpenAI, **more: object) -> Completion:
    fields = {"model": "smollm2", "prompt": FRANCE, "temperature": 0, "max_tokens": 8} | more
    return client.completions.create(**fields)  # type: ignore[call-overload,no-any-return]


def test_n_gives_n_choices_each_its_own(client: openai.OpenAI) -> None:
    plain = chat(client)  # so that both later ones find the prompt in the cache, and round alike
    answer = chat(client, n=4, temperature=1.3, seed=1)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert len({c.message.content for c in answer.choices}) == 4
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4 * 16
    assert answer.usage.prompt_tokens == plain.usage.prompt_tokens  # type: ignore[union-attr]
    again = chat(client, n=4, temperature=1.3, seed=1)
    assert [c.message.content for c in again.choices] == [c.message.content for c in answer.choices]


def test_n_streams_every_choice_under_its_index(client: openai.OpenAI) -> None:
    whole = chat(client, n=3, temperature=1.3, seed=1)
    texts: dict[int, str] = {}
    ends: dict[int, str] = {}
    chunk: ChatCompletionChunk
    for chunk in chat(client, n=3, temperature=1.3, seed=1, stream=True):  # type: ignore[assignment]
        for choice in chunk.choices:
            assert choice.index not in ends, "nothing after the finish reason"
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert texts == {c.index: c.message.content for c in whole.choices}
    assert ends == {c.index: c.finish_reason for c in whole.choices}


def test_best_of_searches_beams_and_orders_them_by_score(client: openai.OpenAI) -> None:
    story = "Once upon a time"  # no beam ends early, so all have the same length
    greedy = completion(client, prompt=story, logprobs=1).choices[0]
    beams = completion(client, prompt=story, best_of=4, n=4, logprobs=1).choices
    assert len(beams) == 4
    assert len({b.text for b in beams}) == 4
    sums = [sum(b.logprobs.token_logprobs) for b in beams]  # type: ignore[union-attr,arg-type]
    assert max(sums) == pytest.approx(sums[0], abs=1.0)
    assert sums == sorted(sums, reverse=True)
    assert sums[0] >= sum(greedy.logprobs.token_logprobs) - 1e-3  # type: ignore[union-attr,arg-type]


def test_n_of_best_of_is_its_head(client: openai.OpenAI) -> None:
    all_four = [c.text for c in completion(client, best_of=4, n=4).choices]
    assert [c.text for c in completion(client, best_of=4, n=2).choices] == all_four[:2]


def test_diversity_penalty_spreads_beam_groups(client: openai.OpenAI) -> None:
    def firsts(**more: object) -> int:
        beams = completion(client, best_of=4, n=4, max_tokens=6, extra_body=more).choices
        return len({b.text.split()[0] for b in beams if b.text.split()})

    assert firsts(num_beam_groups=4, diversity_penalty=5.0) > firsts()


def test_length_penalty_orders_beams_by_length(client: openai.OpenAI) -> None:
    def lengths(penalty: float) -> list[int]:
        more = {"best_of": 6, "length_penalty": penalty}
        answer = chat(client, messages=CAPITAL, n=6, max_tokens=40, extra_body=more)
        return [len(c.message.content or "") for c in answer.choices]

    short, long = lengths(-3.0), lengths(3.0)
    assert sum(short[:2]) < sum(long[:2])


def test_logprobs_of_chat_match_the_text_and_sum_as_probabilities(client: openai.OpenAI) -> None:
    choice = chat(client, logprobs=True, top_logprobs=1).choices[0]
    assert choice.logprobs is not None
    tokens = choice.logprobs.content or []
    assert "".join(t.token for t in tokens) == choice.message.content
    assert bytes(b for t in tokens for b in t.bytes or []).decode() == choice.message.content
    assert all(t.logprob <= 0 for t in tokens)
    assert all(t.top_logprobs[0].token == t.token for t in tokens)
    assert math.exp(max(t.logprob for t in tokens)) > 0.5


def test_logprobs_in_streams_are_those_of_the_whole(client: openai.OpenAI) -> None:
    whole = chat(client, logprobs=True).choices[0].logprobs
    assert whole is not None
    streamed = [
        t
        for chunk in chat(client, logprobs=True, stream=True)
        for choice in chunk.choices  # type: ignore[attr-defined]
        if choice.logprobs
        for t in choice.logprobs.content
    ]
    assert [(t.token, pytest.approx(t.logprob, abs=0.05)) for t in streamed] == [
        (t.token, t.logprob) for t in whole.content or []
    ]


def test_a_more_likely_continuation_has_the_higher_logprob(client: openai.OpenAI) -> None:
    def score(text: str) -> float:
        answer = completion(client, prompt=FRANCE + text, max_tokens=0, echo=True, logprobs=1).choices[0]
        assert answer.logprobs is not None
        assert answer.logprobs.text_offset is not None
        values = answer.logprobs.token_logprobs or []
        return sum(
            v
            for v, at in zip(values, answer.logprobs.text_offset, strict=True)
            if v is not None and at >= len(FRANCE)
        )

    assert score(" Paris") > score(" banana")


def test_echo_with_logprobs_as_lm_eval_asks(client: openai.OpenAI) -> None:
    answer = completion(client, prompt=FRANCE, max_tokens=1, echo=True, logprobs=1)
    choice = answer.choices[0]
    assert choice.text.startswith(FRANCE)
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[0] is None
    assert all(v is not None and v <= 0 for v in choice.logprobs.token_logprobs[1:])
    assert choice.logprobs.text_offset == [
        len("".join(choice.logprobs.tokens[:i])) for i in range(len(choice.logprobs.tokens))
    ]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 1)


def test_echo_alone_gives_the_prompt_back(client: openai.OpenAI) -> None:
    answer = completion(client, max_tokens=0, echo=True)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (FRANCE, "length")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0
    streamed = completion(client, max_tokens=4, echo=True, stream=True)
    assert (
        "".join(c.choices[0].text for c in streamed)
        == completion(client, max_tokens=4, echo=True).choices[0].text
    )  # type: ignore[attr-defined]


def test_prompts_as_token_ids_and_as_a_batch(client: openai.OpenAI) -> None:
    ids = [504, 3575, 282, 4649, 314]  # "The capital of France is" (smollm2)
    # Few tokens: alone and in a batch the sums are added up in another order, which decides near-ties.
    alone = completion(client, max_tokens=1).choices[0].text
    assert completion(client, max_tokens=1, prompt=ids).choices[0].text == alone == " Paris"
    batch = completion(client, max_tokens=1, prompt=[FRANCE, "One, two, three,"])
    assert [c.index for c in batch.choices] == [0, 1]
    assert batch.choices[0].text == alone
    assert (
        batch.choices[1].text == completion(client, max_tokens=1, prompt="One, two, three,").choices[0].text
    )
    assert batch.usage is not None
    assert batch.usage.completion_tokens == 2
    pairs = completion(client, prompt=[ids, ids], n=2, temperature=1.0, seed=3)
    assert [c.index for c in pairs.choices] == [0, 1, 2, 3]
    with pytest.raises(openai.BadRequestError, match="not in the vocabulary") as caught:
        completion(client, prompt=[10**6])
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("stream", [True, False])
def test_include_stop_str_in_output_both_ways_in_both_modes(client: openai.OpenAI, stream: bool) -> None:
    whole = completion(client, prompt="Once upon a time", max_tokens=30).choices[0].text
    # The text is the machine's (another CPU decides near-ties otherwise), so the stop string is taken from it.
    stop = re.findall(r"[a-z]{4,}", whole)[2]
    cut = whole.index(stop)

    def ask(**more: object) -> str:
        fields = {"prompt": "Once upon a time", "max_tokens": 30, "stop": [stop], "stream": stream}
        answer = completion(client, **fields, extra_body=more)
        if stream:
            return "".join(c.choices[0].text for c in answer)  # type: ignore[attr-defined]
        return answer.choices[0].text

    assert ask() == whole[:cut]
    assert ask(include_stop_str_in_output=False) == whole[:cut]
    assert ask(include_stop_str_in_output=True) == whole[: cut + len(stop)]


def test_stop_token_ids_end_the_answer(client: openai.OpenAI) -> None:
    stopped = completion(client, max_tokens=6, extra_body={"stop_token_ids": [7042]})  # " Paris"
    assert stopped.choices[0].finish_reason == "stop"
    assert "Paris" not in stopped.choices[0].text


def test_min_tokens_holds_the_end_back(client: openai.OpenAI) -> None:
    short = chat(client, messages=CAPITAL, max_tokens=80)
    assert short.usage is not None
    assert short.usage.completion_tokens < 60
    forced = chat(
        client,
        messages=CAPITAL,
        max_tokens=80,
        extra_body={"min_tokens": 70},
    )
    assert forced.usage is not None
    assert forced.usage.completion_tokens >= 70


def test_skip_special_tokens_false_shows_them(client: openai.OpenAI) -> None:
    shown = chat(client, messages=CAPITAL, max_tokens=60,
                 extra_body={"ignore_eos": True, "skip_special_tokens": False})  # fmt: skip
    assert "<|im_end|>" in (shown.choices[0].message.content or "")


def test_continuous_usage_counts_up(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(chat(client, max_tokens=5, stream=True, stream_options=options))
    counts = [c.usage.completion_tokens for c in chunks]  # type: ignore[attr-defined]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == 5


def test_continue_final_message(client: openai.OpenAI) -> None:
    messages = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is"},
    ]
    answer = chat(
        client, messages=messages, extra_body={"continue_final_message": True, "add_generation_prompt": False}
    )
    assert (answer.choices[0].message.content or "").lstrip().startswith("Paris")


def test_add_generation_prompt_false_leaves_the_assistant_header_out(client: openai.OpenAI) -> None:
    with_header = chat(client, max_tokens=1).usage
    without = chat(client, max_tokens=1, extra_body={"add_generation_prompt": False}).usage
    assert with_header is not None
    assert without is not None
    assert without.prompt_tokens < with_header.prompt_tokens


def test_beams_refuse_what_the_engine_cannot_combine(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        completion(client, best_of=3, frequency_penalty=1.0)
    assert completion(client, best_of=2).choices[0].text
