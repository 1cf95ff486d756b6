"""The generation parameters of responses show their effect on the real engine, as in test_parameters.py."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from tests.conftest import Server

FRANCE = "What is the capital of France?"
STORY = "Write a story about a bird."


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0) as made:
        yield made


def ask(client: openai.OpenAI, text: str = STORY, *, tokens: int = 16, **more: Any) -> Response:
    """`more`: fields that OpenAI's own client has no arguments for."""
    fields = {"temperature": 0, "store": False} | more
    return client.responses.create(model="smollm2", input=text, max_output_tokens=tokens, extra_body=fields)


def texts(response: Response) -> list[str]:
    return ["".join(part.text for part in item.content) for item in response.output]  # type: ignore[union-attr]


def test_max_output_tokens_cuts_and_says_so(client: openai.OpenAI) -> None:
    response = ask(client, tokens=5)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.output_tokens == 5


def test_stop_cuts_at_the_character_and_may_be_kept(client: openai.OpenAI) -> None:
    whole = ask(client, FRANCE).output_text
    word = whole.split()[2]
    cut = whole.index(word)
    assert ask(client, FRANCE, stop=word).output_text == whole[:cut]
    assert ask(client, FRANCE, stop=[word], include_stop_str_in_output=True).output_text == whole[:cut] + word


def test_lengths_and_ends(client: openai.OpenAI) -> None:
    def count(**more: Any) -> int:
        response = ask(client, FRANCE, tokens=40, **more)
        assert response.usage is not None
        return response.usage.output_tokens

    alone = count()
    assert alone < 40
    assert count(ignore_eos=True) == 40
    assert count(min_tokens=alone + 5) >= alone + 5
    shown = ask(client, FRANCE, tokens=40, ignore_eos=True, skip_special_tokens=False)
    assert "<|im_end|>" in shown.output_text


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 0}, {"top_p": 0.0001}, {"min_p": 1}])
def test_a_filter_that_leaves_one_token_is_greedy(client: openai.OpenAI, narrow: dict[str, float]) -> None:
    text = "What is the capital of France?"  # of certain tokens: a `min_p` below 1 leaves ties
    greedy = ask(client, text, tokens=8).output_text
    assert ask(client, text, tokens=8, temperature=1.9, seed=3, **narrow).output_text == greedy


def test_penalties_reduce_repetition(client: openai.OpenAI, subtests: pytest.Subtests) -> None:
    """Of three texts, because rounding may end a repetition in one of them. All are asked at once: a step of twelve
    costs less than twelve steps."""
    questions = "Repeat apple banana cherry.", "Repeat the word apple for ever.", "Sing la la la la la."
    penalties = {"frequency_penalty": 2, "presence_penalty": 2, "repetition_penalty": 1.8}

    def share(text: str, more: dict[str, float]) -> float:
        words = ask(client, text, tokens=120, **more).output_text.split()
        return len(set(words)) / len(words)

    with ThreadPoolExecutor(12) as pool:
        shares = {
            name: [pool.submit(share, text, {name: penalties[name]} if name else {}) for text in questions]
            for name in ("", *penalties)
        }
    variety = {name: sum(each.result() for each in of_name) for name, of_name in shares.items()}
    for name in penalties:
        with subtests.test(name):
            assert variety[name] > variety[""]


def test_n_and_best_of_are_messages(client: openai.OpenAI) -> None:
    ask(client)  # so that both later ones find the prompt in the cache, and round alike
    sampled = texts(ask(client, n=3, temperature=1.3, seed=1))
    assert len(set(sampled)) == 3
    assert texts(ask(client, n=3, temperature=1.3, seed=1)) == sampled
    beams = texts(ask(client, best_of=3, n=2))
    assert len(set(beams)) == 2
    assert texts(ask(client, best_of=3)) == beams[:1]


def test_diversity_penalty_spreads_beam_groups(client: openai.OpenAI) -> None:
    def firsts(**more: Any) -> int:
        beams = texts(ask(client, FRANCE, tokens=6, best_of=4, n=4, **more))
        return len({text.split()[0] for text in beams if text.split()})

    assert firsts(num_beam_groups=4, diversity_penalty=5.0) >= max(3, firsts())


def test_length_penalty_orders_beams_by_length(client: openai.OpenAI) -> None:
    short, long = (
        sum(map(len, texts(ask(client, FRANCE, tokens=40, best_of=6, n=2, length_penalty=penalty))))
        for penalty in (-3.0, 3.0)
    )
    assert short < long


def test_chat_template_kwargs_reach_the_template(client: openai.OpenAI) -> None:
    with_header = ask(client, tokens=1).usage
    without = ask(client, tokens=1, chat_template_kwargs={"add_generation_prompt": False}).usage
    assert with_header is not None
    assert without is not None
    assert without.input_tokens < with_header.input_tokens
