"""A generator: it answers prompts with the weights it has, and gets new ones in updates. It is a Ray actor."""

from __future__ import annotations

import os
import threading

import torch
from torch import nn
from weight_group import GroupMember, checksum_of

PROMPT_SIZE, HIDDEN_SIZE, ANSWER_SIZE = 64, 1024, 8


def build_policy() -> nn.Module:
    return nn.Sequential(nn.Linear(PROMPT_SIZE, HIDDEN_SIZE), nn.Tanh(), nn.Linear(HIDDEN_SIZE, ANSWER_SIZE))


class Generator(GroupMember):
    """Serves a policy. Calls overlap: an update's `kill_group` must come through while `receive` waits."""

    def __init__(self) -> None:
        super().__init__()
        self._policy = build_policy()
        self._former: list[torch.Tensor] | None = None
        self._is_paused = False
        self._lock = threading.Lock()
        """Held while weights are used or replaced."""

    def pid(self) -> int:
        return os.getpid()

    def checksum(self) -> str:
        with self._lock:
            return checksum_of(self._policy.parameters())

    def generate(self, prompts: torch.Tensor) -> torch.Tensor | None:
        """Answers, or None while it is paused."""
        with self._lock, torch.no_grad():
            if self._is_paused:
                return None
            answers: torch.Tensor = self._policy(prompts)
            return answers

    def pause(self) -> None:
        """Returns when no answer is under way."""
        with self._lock:
            self._is_paused = True

    def resume(self) -> None:
        self._former = None  # The update is over: there is nothing to restore any more.
        self._is_paused = False

    def receive(self) -> str:
        """Get all weights, then replace the old ones at once. Returns the checksum of the new ones."""
        group = self.group
        incoming = [torch.empty_like(weights) for weights in self._policy.parameters()]
        for weights in incoming:
            group.broadcast(weights)
        group.meet_all()
        with self._lock:
            self._former = [weights.detach().clone() for weights in self._policy.parameters()]
            self._load(incoming)
        return self.checksum()

    def restore(self) -> None:
        """Have the weights that this update has replaced, if it has."""
        with self._lock:
            if self._former is not None:
                self._load(self._former)
                self._former = None

    def _load(self, values: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for weights, value in zip(self._policy.parameters(), values, strict=True):
                weights.copy_(value)
