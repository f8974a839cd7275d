"""Structured outputs in every protocol, by the official clients: whole, streamed, n > 1, errors."""

import json
import re
from typing import Any, Literal

import anthropic
import ollama
import openai
import pydantic
import pytest

from support.http_server import RunningServer

pytest.importorskip("llguidance")


class City(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    name: str = pydantic.Field(max_length=20)
    size: Literal["small", "large"]
    old: bool


SCHEMA = City.model_json_schema()
FORMAT: Any = {
    "type": "json_schema",
    "json_schema": {"name": "city", "schema": SCHEMA, "strict": True},
}
QUESTION: list[Any] = [{"role": "user", "content": "Is Paris the capital of France?"}]
COMMON: dict[str, Any] = {"model": "tested", "messages": QUESTION, "max_tokens": 80, "seed": 5}
CHOICE = {"structured_outputs": {"choice": ["Yes", "No"]}}
WRONG_SCHEMA = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}


def test_each_answer_fits_the_schema(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(**COMMON, n=3, response_format=FORMAT)
    texts = [choice.message.content or "" for choice in reply.choices]
    assert all(City.model_validate_json(text) for text in texts)
    assert {choice.finish_reason for choice in reply.choices} == {"stop"}
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**COMMON, n=3, response_format=FORMAT, stream=True):
        for part in chunk.choices:
            streamed[part.index] += part.delta.content or ""
    assert streamed == texts


def test_the_clients_parse_answers_into_classes(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(**COMMON, response_format=City)
    assert isinstance(parsed.choices[0].message.parsed, City)
    response = client.responses.parse(
        model="tested", input="Paris", text_format=City, max_output_tokens=80, temperature=0
    )
    assert isinstance(response.output_parsed, City)
    assert response.model_dump()["text"]["format"]["type"] == "json_schema"
    with client.responses.stream(
        model="tested", input="Paris", text_format=City, max_output_tokens=80, temperature=0
    ) as stream:
        assert isinstance(stream.get_final_response().output_parsed, City)


def test_a_json_object_and_llama_cpps_form_of_a_schema(client: openai.OpenAI) -> None:
    shape: Any = {"type": "json_object"}
    for given in (shape, {**shape, "schema": SCHEMA}):
        (choice,) = client.chat.completions.create(**COMMON, response_format=given).choices
        assert (choice.message.content or "").startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content or ""), dict)
    assert City.model_validate_json(choice.message.content or "")


def test_a_story_or_a_choice(client: openai.OpenAI) -> None:
    """The example of docs/server.md."""
    question: list[Any] = [
        {"role": "user", "content": "Tell me a story about a brave cat. Does it end well?"}
    ]
    fields: dict[str, Any] = {"model": "tested", "messages": question, "temperature": 0}
    usages = [
        client.chat.completions.create(**fields, extra_body=extra).usage for extra in ({}, CHOICE)
    ]
    story, choice = (usage.completion_tokens if usage else 0 for usage in usages)
    assert story > 100 and choice == 1


def test_completions_take_rules_for_every_prompt(client: openai.OpenAI) -> None:
    for rule, pattern in (
        ({"regex": r"\d{3}-\d{2}", "json": None, "json_object": False}, r"\d{3}-\d{2}"),
        ({"grammar": 'start: "a" | "b" start'}, "b*a"),
        ({"choice": ["Yes", "No"]}, "Yes|No"),
        ({"json": json.dumps(SCHEMA)}, r"\{.*\}"),
    ):
        reply = client.completions.create(
            model="tested",
            prompt=["Paris", "Rome"],
            n=2,
            max_tokens=80,
            seed=5,
            extra_body={"structured_outputs": rule},
        )
        assert len(reply.choices) == 4
        assert all(re.fullmatch(pattern, choice.text) for choice in reply.choices)


def test_anthropics_output_format(server: RunningServer) -> None:
    config: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    fields: dict[str, Any] = {"model": "tested", "max_tokens": 80, "messages": QUESTION}
    fields["extra_body"] = {"temperature": 0}
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        message: Any = client.messages.create(**fields, output_config=config)
        with client.messages.stream(**fields, output_config=config) as stream:
            streamed: Any = stream.get_final_message()
        for got in (message, streamed):
            assert City.model_validate_json(got.content[0].text)
            assert (got.stop_reason, got.stop_sequence) == ("end_turn", None)
        config["format"]["schema"] = WRONG_SCHEMA
        with pytest.raises(anthropic.BadRequestError, match=r"output_config\.format: .*not"):
            client.messages.create(**fields, output_config=config)


def test_ollamas_format(server: RunningServer) -> None:
    options = {"num_predict": 80, "seed": 5}
    with ollama.Client(host=server.url) as client:
        chat = client.chat("tested", QUESTION, format=SCHEMA, options=options)
        assert City.model_validate_json(chat.message.content or "")
        parts = client.generate("tested", "Paris", format=SCHEMA, options=options, stream=True)
        assert City.model_validate_json("".join(part.response for part in parts))
        raw = client.generate("tested", "Paris", format=SCHEMA, options=options, raw=True)
        assert City.model_validate_json(raw.response)
        assert client.generate("tested", "Paris", format="json", options=options).response[0] == "{"
        with pytest.raises(ollama.ResponseError, match=r"format: .*not"):
            client.chat("tested", QUESTION, format=WRONG_SCHEMA)
