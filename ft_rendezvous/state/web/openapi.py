"""The server's description, made from the records themselves and from the table of routes."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import msgspec

from ft_rendezvous.state.model.records import SCHEMA_VERSION
from ft_rendezvous.state.web.routes import API_ROUTES, JSON, ApiRoute, Health, Problem

_ERRORS = {
    "401": "No token, or another one",
    "403": "The request comes from a page of another origin, or its host is a name and no address",
    "404": "No such run",
    "405": "Neither GET nor HEAD",
    "413": "A body was sent",
    "431": "The headers are too large",
    "503": "Too many clients follow already",
}


def describe_api(has_token: bool) -> dict[str, Any]:
    """OpenAPI 3.1."""
    with_record = [endpoint for endpoint in API_ROUTES if endpoint.returns is not None]
    types = [*(endpoint.returns for endpoint in with_record), Problem]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    answers = {endpoint.name: schema for endpoint, schema in zip(with_record, schemas[:-1], strict=True)}
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "ft_rendezvous: state of a run",
            "version": f"{version('ft-rendezvous')}+schema.{SCHEMA_VERSION}",
            "description": "The nodes, the cycles and the events of a run. Nothing can be changed here.",
        },
        "paths": {each.path: {"get": _describe(each, answers.get(each.name), has_token)} for each in API_ROUTES},
        "components": {"schemas": dict(components)},
    }
    if has_token:
        described["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        described["security"] = [{"token": []}]
    return described


def _describe(endpoint: ApiRoute, schema: dict[str, Any] | None, has_token: bool) -> dict[str, Any]:
    media = {endpoint.media_type: _content_of(endpoint, schema)}
    codes = ["403", "405", "413", "431"]
    codes += ["401"] if has_token and not endpoint.is_open else []
    codes += ["404"] if "{" in endpoint.path else []
    codes += ["400", "503"] if endpoint.name == "follow_events" else []
    problem = {JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    texts = {**_ERRORS, "400": "A parameter that is no number"}
    responses: dict[str, Any] = {code: {"description": texts[code], "content": problem} for code in sorted(codes)}
    responses["200"] = {"description": endpoint.summary, "content": media}
    if endpoint.returns is Health:
        responses["503"] = {"description": "The answers may be old", "content": media}
    described: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "responses": dict(sorted(responses.items())),
    }
    if parameters := _parameters_of(endpoint):
        described["parameters"] = parameters
    if has_token and endpoint.is_open:
        described["security"] = []
    return described


def _content_of(endpoint: ApiRoute, schema: dict[str, Any] | None) -> dict[str, Any]:
    if endpoint.media_type == JSON:
        return {"schema": schema}
    if schema is not None:
        # OpenAPI 3.1 has no word for the items of a stream: this is what every `data:` line is.
        return {"schema": {"type": "string"}, "x-item-schema": schema}
    return {"schema": {"type": "string"}}


def _parameters_of(endpoint: ApiRoute) -> list[dict[str, Any]]:
    texts = {"id": "The run's id or its name, percent-encoded", "file": "The name of the file"}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "description": text, "schema": {"type": "string"}}
        for name, text in texts.items()
        if f"{{{name}}}" in endpoint.path
    ]
    parameters += [
        {"name": name, "in": "query", "description": text, "schema": {"type": "integer", "minimum": 0}}
        for name, text in endpoint.query.items()
    ]
    if "after" in endpoint.query:
        text = "The id of the newest event that is known already"
        schema = {"type": "integer", "minimum": 0}
        parameters.append({"name": "Last-Event-ID", "in": "header", "description": text, "schema": schema})
    return parameters
