"""The description: valid, complete, and true of what a real server answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator
from openapi_spec_validator import validate
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from ft_rendezvous.state.web.app import make_app
from ft_rendezvous.state.web.live_run import LiveRun
from ft_rendezvous.state.web.openapi import describe_api
from ft_rendezvous.state.web.routes import API_ROUTES
from tests.state.group_story import tell_group_story
from tests.state.recording import record_seed
from tests.state.web.servers import ROOT, client_of, live_run_of
from tests.state.web.test_following import follow


@pytest.mark.parametrize("has_token", [False, True])
def test_the_description_is_valid(has_token: bool) -> None:
    validate(json.loads(json.dumps(describe_api(has_token))))


def test_what_is_routed_is_what_is_described() -> None:
    routed = {route.path for route in make_app(LiveRun(), None).routes}  # type: ignore[attr-defined]
    assert routed == set(describe_api(False)["paths"]) == {endpoint.path for endpoint in API_ROUTES}


def validator_for(described: dict[str, Any], schema: dict[str, Any]) -> Validator:
    resource = Resource.from_contents(described, default_specification=DRAFT202012)
    registry: Registry[Any] = Registry().with_resource("urn:api", resource)
    absolute = json.loads(json.dumps(schema).replace('"#/components', '"urn:api#/components'))
    return Draft202012Validator(absolute, registry=registry)


@pytest.mark.parametrize("seed", [3, 8, 21, None], ids=lambda seed: "groups" if seed is None else str(seed))
def test_what_a_server_answers_is_what_it_describes(seed: int | None) -> None:
    lines = tell_group_story(run_id="sim").lines if seed is None else record_seed(seed).lines
    with client_of(live_run_of(lines)) as client:
        described = client.get("/openapi.json").json()
        for path, methods in described["paths"].items():
            content = methods["get"]["responses"]["200"]["content"]
            if path == "/{file}":
                continue
            url = path.replace("{id}", "sim")
            if "text/event-stream" in content:
                validator = validator_for(described, content["text/event-stream"]["x-item-schema"])
                for event in follow(client, f"{url}?follow=0"):
                    validator.validate(json.loads(event.data))
                for event in follow(client, f"{url}?follow=0&after=999999"):
                    validator.validate(json.loads(event.data))
                continue
            response = client.get(url)
            media_type = response.headers["content-type"].partition(";")[0]
            assert media_type in content, path
            if media_type == "application/json":
                validator_for(described, content[media_type]["schema"]).validate(response.json())
        problem = validator_for(described, {"$ref": "#/components/schemas/Problem"})
        problem.validate(client.get("/none").json())


def test_the_validator_would_notice() -> None:
    described = describe_api(False)
    schema = described["paths"]["/api/ft/v1/runs"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert not validator_for(described, schema).is_valid([{"id": 1}])


def test_the_document_names_every_route() -> None:
    text = (ROOT / "docs" / "state-api.md").read_text()
    assert not [endpoint.path for endpoint in API_ROUTES if f"`{endpoint.path}`" not in text]
