"""POST responses and its state through the real application and the official client, over a scripted engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseItemList

from tests.api.openai.test_responses_writer import check_order, events
from tests.conftest import eventually
from tests.http.responses_harness import OWNER, Serving, serving


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(tmp_path) as made:
        yield made


def strict(response: Any) -> Any:
    Response.model_validate(response.to_dict(), strict=True)
    return response


async def wait_for(server: Serving, id_: str, *statuses: str) -> Any:
    for _ in range(3000):
        response = strict(await server.client.responses.retrieve(id_))
        if response.status in statuses:
            return response
        await asyncio.sleep(0.02)
    raise AssertionError(f"{id_} is {response.status}")


# ---- answers


@pytest.mark.parametrize("prefix", ["/v3", "/v1", "/v3/v1"])
async def test_a_unary_answer(server: Serving, prefix: str) -> None:
    client = server.client.with_options(base_url=server.url + prefix)
    response = strict(await client.responses.create(model="m", input="say", temperature=0.7))
    assert response.output_text == "all is well"
    assert (response.status, response.temperature, response.store) == ("completed", 0.7, True)
    assert response.usage.total_tokens == response.usage.input_tokens + 3


async def test_a_stream_is_well_formed_and_ends_in_the_unary_body(server: Serving) -> None:
    data = (await server.post("say", stream=True)).content
    response = check_order(events(data))
    assert data.endswith(b"\n\ndata: [DONE]\n\n")
    unary = (await server.post("say")).json()
    volatile = {"id", "created_at", "completed_at", "output"}
    assert {k: v for k, v in response.items() if k not in volatile} == {
        k: v for k, v in unary.items() if k not in volatile
    }
    assert [o["content"] for o in response["output"]] == [o["content"] for o in unary["output"]]
    assert response == (await server.http.get(f"/v3/responses/{response['id']}")).json()


async def test_the_clients_stream_helper(server: Serving) -> None:
    async with server.client.responses.stream(model="m", input="say") as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds[0] == "response.created"
    assert final.output_text == "all is well"


async def test_a_limit_is_kept_and_a_large_one_is_clamped_and_told(server: Serving) -> None:
    response = await server.create("say", max_output_tokens=2)
    assert (response.status, response.output_text) == ("incomplete", "all is")
    assert response.incomplete_details.reason == "max_output_tokens"
    answer = await server.post("say", max_output_tokens=32000)
    assert answer.headers["x-ovserve-clamped"].startswith("max_output_tokens=4")


async def test_stop_and_what_is_ignored(server: Serving) -> None:
    answer = await server.post(
        "say", stop=" is", tools=[{"type": "web_search"}, {"type": "mcp", "server_label": "x"}], ttl=5
    )
    assert answer.json()["output"][0]["content"][0]["text"] == "all"
    assert answer.headers["x-ovserve-ignored-params"] == "ttl,tools[0].type=web_search,tools[1].type=mcp"
    assert answer.json()["tools"] == []


@pytest.mark.parametrize("stream", [True, False])
async def test_refusals_are_proper_statuses(server: Serving, stream: bool) -> None:
    for fields, param in (
        ({"text": {"format": {"type": "zebra"}}}, "text.format.type"),
        ({"input": []}, "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].image_url",
        ),
        ({"temperature": "hot"}, "temperature"),
        ({"previous_response_id": 7}, "previous_response_id"),
        ({"ovserve": {"id": "resp_mine"}}, "ovserve"),
        ({"background": True, "store": False}, "background"),
    ):
        body = {"model": "m", "input": "x", "stream": stream} | fields
        answer = await server.http.post("/v3/responses", json=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param
    assert (await server.http.post("/v3/responses", json={"model": "no", "input": "x"})).status_code == 404
    assert (await server.http.post("/v3/responses", content=b"[]")).status_code == 400
    assert (await server.http.post("/v3/responses", content=b'{"model":"m"}')).status_code == 400
    assert server.engine.stats().running == 0


async def test_a_prompt_too_long_is_told_before_the_stream(server: Serving) -> None:
    answer = await server.post("word " * 5000, stream=True)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_n_and_best_of(server: Serving) -> None:
    response = strict(await server.create("say", extra_body={"n": 2, "temperature": 1}))
    assert [item.content[0].text for item in response.output] == ["all is well", "all is well"]
    assert len({item.id for item in response.output}) == 2


# ---- failures


async def test_an_engine_that_dies_in_a_stream_gives_response_failed_with_usage(server: Serving) -> None:
    data = (await server.post("raise", stream=True)).content
    response = check_order(events(data))
    assert response["status"] == "failed"
    assert response["error"]["code"] == "server_error"
    assert response["usage"]["input_tokens"] == 3
    assert response["usage"]["output_tokens"] == 2
    assert response["output"][0]["status"] == "incomplete"
    stored = strict(await server.client.responses.retrieve(response["id"]))
    assert stored.to_dict() == response
    assert (await server.create("say")).output_text == "all is well"


async def test_an_engine_that_dies_under_a_unary_request(server: Serving) -> None:
    answer = await server.post("raise")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1


async def test_a_client_that_leaves_a_stream_frees_the_engine_and_leaves_a_cancelled_response(
    server: Serving,
) -> None:
    stream = await server.create("endless", stream=True)
    id_ = None
    async for event in stream:
        id_ = id_ or event.response.id
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    response = await wait_for(server, str(id_), "cancelled")
    assert response.output_text.startswith("word")
    assert response.usage.output_tokens > 0
    assert server.engine.stats().running == 0


async def test_a_client_that_leaves_a_unary_request_frees_the_engine(server: Serving) -> None:
    with pytest.raises(openai.APITimeoutError):
        await server.client.with_options(timeout=0.3).responses.create(model="m", input="endless")
    await eventually(lambda: server.engine.stats().running == 0)


# ---- state


async def test_store_false_is_not_kept(server: Serving) -> None:
    for stream in (True, False):
        answer = await server.post("say", store=False, stream=stream)
        text = answer.text.split("\n")[1].removeprefix("data: ") if stream else answer.text
        body = json.loads(text)["response"] if stream else json.loads(text)
        assert body["store"] is False
        with pytest.raises(openai.NotFoundError):
            await server.client.responses.retrieve(body["id"])


async def test_retrieve_delete_and_not_found(server: Serving) -> None:
    response = await server.create("say", metadata={"a": "b"})
    again = strict(await server.client.responses.retrieve(response.id))
    assert again.to_dict() == response.to_dict()
    await server.client.responses.delete(response.id)
    for verb in (server.client.responses.retrieve, server.client.responses.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            await verb(response.id)
        assert response.id in str(caught.value)
    deleted = await server.http.delete(f"/v3/responses/{(await server.create('say')).id}")
    assert deleted.json()["deleted"] is True


async def test_input_items_page_by_page(server: Serving) -> None:
    items: Any = [{"role": "user", "content": f"say {i}"} for i in range(7)]
    response = await server.create(items)
    page = await server.client.responses.input_items.list(response.id, limit=3)
    ResponseItemList.model_validate(page.to_dict(), strict=True)
    assert [item.content[0].text for item in page.data] == ["say 6", "say 5", "say 4"]  # type: ignore[union-attr]
    assert page.has_more
    everything = [
        item async for item in server.client.responses.input_items.list(response.id, limit=2, order="asc")
    ]
    assert [item.content[0].text for item in everything] == [f"say {i}" for i in range(7)]  # type: ignore[union-attr]
    rest = await server.client.responses.input_items.list(response.id, after=everything[4].id, order="asc")
    assert [item.id for item in rest.data] == [item.id for item in everything[5:]]
    assert not rest.has_more
    for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=nothing"):
        answer = await server.http.get(f"/v3/responses/{response.id}/input_items?{query}")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == query.partition("=")[0]


HISTORY: list[Any] = [
    {"role": "user", "content": "first question"},
    [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "second  question\n"}]}],
    [
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": "ü"}'},
        {"type": "function_call_output", "call_id": "c1", "output": {"temp": 3}},
        {"role": "developer", "content": "now be brief"},
        {"role": "user", "content": "third"},
    ],
]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_chain_of_three_gives_the_prompt_of_the_whole_history(server: Serving, stream: bool) -> None:
    """The echo reply is the prompt, so equal answers are equal prompts, byte for byte."""
    previous, whole, last = None, [], ""
    for turn in HISTORY:
        items = turn if isinstance(turn, list) else turn["content"]
        answer = await server.post(
            items, previous_response_id=previous, instructions="be kind", stream=stream
        )
        response = events(answer.content)[-1]["response"] if stream else answer.json()
        whole += turn if isinstance(turn, list) else [turn]
        sent = await server.create(list(whole), instructions="be kind", store=False)
        last = response["output"][0]["content"][0]["text"]
        assert last == sent.output_text
        assert response["previous_response_id"] == previous
        assert response["usage"]["input_tokens"] == sent.usage.input_tokens
        whole += response["output"]
        previous = response["id"]
    assert last.count("first question") == 4
    assert last.startswith("system: be kind\nuser: first question\nassistant: system: be kind")


async def test_a_chain_forks_and_does_not_carry_instructions(server: Serving) -> None:
    root = await server.create("one", instructions="only here")
    left = await server.create("two", previous_response_id=root.id)
    right = await server.create("three", previous_response_id=root.id)
    assert left.output_text.startswith("user: one\nassistant: system: only here")
    assert "two" not in right.output_text
    assert right.instructions is None


@pytest.mark.parametrize("more", [{}, {"input": None}, {"input": []}, {"input": None, "truncation": "auto"}])
async def test_a_chain_or_instructions_need_no_input(server: Serving, more: dict[str, Any]) -> None:
    root = await server.create("one")
    for fields, text in (
        ({"previous_response_id": root.id}, "user: one\nassistant: user: one"),
        ({"instructions": "Greet."}, "system: Greet."),
    ):
        answer = await server.http.post("/v3/responses", json={"model": "m"} | fields | more)
        assert answer.status_code == 200, answer.text
        assert answer.json()["output"][0]["content"][0]["text"].startswith(text)
        counted = await server.http.post("/v3/responses/input_tokens", json=fields | more)
        assert counted.json()["input_tokens"] == answer.json()["usage"]["input_tokens"]
    items = await server.http.get(f"/v3/responses/{answer.json()['id']}/input_items")
    assert items.json()["data"] == []
    nothing = await server.http.post("/v3/responses", json={"model": "m"} | more)
    assert (nothing.status_code, nothing.json()["error"]["param"]) == (400, "input"), nothing.text


async def test_a_previous_response_that_is_not_there(server: Serving) -> None:
    a = await server.create("one")
    b = await server.create("two", previous_response_id=a.id)
    await server.client.responses.delete(a.id)
    for previous, missing in (("resp_nothing", "resp_nothing"), (b.id, a.id)):
        for stream in (True, False):
            answer = await server.post("x", previous_response_id=previous, stream=stream)
            error = answer.json()["error"]
            assert answer.status_code == 400
            assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
            assert missing in error["message"]


async def test_items_by_reference(server: Serving) -> None:
    first = await server.create("the first")
    asked = (await server.client.responses.input_items.list(first.id)).data[0]
    items: Any = [
        {"type": "item_reference", "id": asked.id},
        {"type": "item_reference", "id": first.output[0].id},
        {"role": "user", "content": "more"},
    ]
    referred = await server.create(items)
    items[0].pop("type")
    items[1]["type"] = None
    assert (await server.create(items)).output_text == referred.output_text
    chained = await server.create("more", previous_response_id=first.id)
    assert referred.output_text == chained.output_text
    for kind in ({"type": "item_reference"}, {}, {"type": None}):
        answer = await server.post([{"role": "user", "content": "x"}, {**kind, "id": "msg_0"}])
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "input[1].id"


async def test_everything_belongs_to_its_owner(server: Serving) -> None:
    ann, bob = {OWNER: "ann"}, {OWNER: "bob"}
    one = (await server.post("endless", background=True, headers=ann)).json()["id"]
    two = (await server.post("say", headers=ann)).json()
    item = two["output"][0]["id"]
    for id_ in (one, two["id"]):
        for method, path in (
            ("GET", ""), ("GET", "?stream=true"), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", ""),
        ):  # fmt: skip
            answer = await server.http.request(method, f"/v3/responses/{id_}{path}", headers=bob)
            assert answer.status_code == 404, (method, path)
        assert (await server.post("x", previous_response_id=id_, headers=bob)).status_code == 400
        assert (await server.http.get(f"/v3/responses/{id_}", headers=ann)).status_code == 200
    stolen = await server.post([{"type": "item_reference", "id": item}], headers=bob)
    assert stolen.status_code == 400
    assert (await server.http.post(f"/v3/responses/{one}/cancel", headers=ann)).json()[
        "status"
    ] == "cancelled"


async def test_truncation_auto_leaves_out_the_oldest_turns_and_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path, script={"max_length": 120}) as server:
        lasting: Any = [{"role": "system", "content": "rules"}, {"type": "additional_tools", "tools": []}]
        items = [*lasting]
        for i in range(12):
            items += [
                {"role": "user", "content": f"question {i} " + "w " * 10},
                {"role": "assistant", "content": f"answer {i}"},
            ]
        items.append({"role": "user", "content": "last say"})
        assert (await server.post(items)).status_code == 400
        assert (await server.post(items, truncation="disabled")).status_code == 400
        answer = await server.post(items, truncation="auto", max_output_tokens=3)
        assert answer.status_code == 200, answer.text
        dropped = int(answer.headers["x-ovserve-truncated"].removeprefix("items="))
        assert dropped % 2 == 0
        # as few as possible: with one turn more it does not fit
        kept = await server.post([*lasting, *items[2 + dropped :]], max_output_tokens=3)
        assert kept.json()["usage"] == answer.json()["usage"]
        assert (await server.post([*lasting, *items[dropped:]])).status_code == 400
        assert (await server.post("w " * 500, truncation="auto")).status_code == 400
        fits = await server.post("say", truncation="auto")
        assert "x-ovserve-truncated" not in fits.headers
        assert server.engine.stats().running == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ITEM = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["message", "function_call", "function_call_output", "reasoning", "item_reference", "mcp_call"]
        )
        | JSON,
        "role": st.sampled_from(["user", "assistant", "system", "developer"]) | JSON,
        "content": st.text(max_size=5) | st.lists(st.fixed_dictionaries({"type": st.just("input_text"), "text": JSON})) | JSON,
        "id": st.sampled_from(["msg_1", "\x00", "\ud7ff"]) | JSON,
        "call_id": JSON, "name": JSON, "arguments": JSON, "output": JSON, "summary": JSON,
    },
)  # fmt: skip
BODY = st.fixed_dictionaries(
    {"model": st.just("m"), "input": st.text(max_size=8) | st.lists(ITEM, max_size=3) | JSON},
    optional={
        name: JSON | st.booleans()
        for name in (
            "stream", "store", "background", "previous_response_id", "truncation", "include", "tools",
            "tool_choice", "metadata", "reasoning", "text", "stop", "max_output_tokens", "instructions", "ovserve",
        )
    },
)  # fmt: skip


async def test_any_body_gives_a_documented_status(server: Serving) -> None:
    """Never a 500, never a hang, and the engine is idle afterwards."""
    bodies: list[Any] = []

    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(BODY)
    def collect(body: Any) -> None:
        bodies.append(body)

    collect()
    statuses = set()
    for body in bodies:
        data = json.dumps(body | {"max_output_tokens": body.get("max_output_tokens", 5)})
        answer = await server.http.post("/v3/responses", content=data, timeout=230)
        statuses.add(answer.status_code)
        assert answer.status_code in (200, 400), (body, answer.text)
        if answer.status_code == 400:
            assert answer.json()["error"]["message"]
    assert statuses == {200, 400}
    for bad in (
        b'{"model":"m","input":[{"type":"item_reference","id":"\\ud800"}]}',
        b'{"model":"m","input":{"a":"item_reference"}}',
    ):
        assert (await server.http.post("/v3/responses", content=bad)).status_code == 400
    for path in ("%ff", "%00", "a%2Fb", "x" * 3000):
        for end in ("", "?stream=true", "/input_items"):
            assert (await server.http.get(f"/v3/responses/{path}{end}")).status_code in (400, 404)
    assert (await server.create("say")).output_text == "all is well"
