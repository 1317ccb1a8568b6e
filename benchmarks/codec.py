"""`codec`: records to bytes and back, without a store.

Ours checks every record (version, cycle, incarnation, number) and survives a bad one. "Bare msgspec" does neither: it
is the lower limit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from benchmarks.baselines.slots import decode_json, encode_slot
from benchmarks.measure import OURS, Case, Sample, require, timed
from benchmarks.nodes import CYCLE_ID, make_arrivals
from ft_rendezvous.core.model import AnyRecord
from ft_rendezvous.protocol import codec

NAME = "codec"
COUNT = 10_000
_lines: msgspec.json.Decoder[AnyRecord] = msgspec.json.Decoder(AnyRecord)
_encoder = msgspec.json.Encoder()


def cases(is_quick: bool) -> list[Case]:
    rounds = 3 if is_quick else 15
    return [
        Case(NAME, f"encode {COUNT:,} arrivals", rounds, _prepare_encode),
        Case(NAME, f"decode {COUNT:,} arrivals", rounds, _prepare_decode),
    ]


@contextmanager
def _prepare_encode() -> Iterator[Mapping[str, Sample]]:
    arrivals = make_arrivals(COUNT)
    plain = [json.loads(encode_slot(arrival)) for arrival in arrivals]
    yield {
        OURS: partial(_sample_encode, lambda: [codec.encode_record(arrival) for arrival in arrivals]),
        "JSON": partial(_sample_encode, lambda: [json.dumps(arrival).encode() for arrival in plain]),
        "bare msgspec": partial(_sample_encode, lambda: [_encoder.encode(arrival) for arrival in arrivals]),
    }


@contextmanager
def _prepare_decode() -> Iterator[Mapping[str, Sample]]:
    records = [codec.encode_record(arrival) for arrival in make_arrivals(COUNT)]
    log = b"".join(records)
    objects = [encode_slot(arrival) for arrival in make_arrivals(COUNT)]
    yield {
        OURS: partial(_sample_decode, lambda: codec.decode_records(log, CYCLE_ID, COUNT)[0]),
        "JSON": partial(_sample_decode, lambda: decode_json(objects)),
        "bare msgspec": partial(_sample_decode, lambda: _lines.decode_lines(log)),
    }


def _sample_encode(encode: Callable[[], list[bytes]]) -> float:
    seconds, encoded = timed(encode)
    require(len(encoded) == COUNT, f"{len(encoded)} records instead of {COUNT}")
    require(str(COUNT).encode() in encoded[-1], "the last record is not the last arrival")
    return seconds


def _sample_decode(decode: Callable[[], Sequence[Any]]) -> float:
    seconds, records = timed(decode)
    require([record.seq for record in records] == list(range(1, COUNT + 1)), "records are missing")
    return seconds
