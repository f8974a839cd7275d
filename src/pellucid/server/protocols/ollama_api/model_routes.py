"""Ollama's routes about the served model.

https://docs.ollama.com/api
"""

import hashlib
from datetime import datetime, timezone
from typing import Any

import msgspec

from pellucid.server.endpoint import Call, Reply, json_reply
from pellucid.server.errors import refused
from pellucid.server.protocols.ollama_api.fields import SHOW_FIELDS
from pellucid.server.protocols.ollama_api.writer import time_text
from pellucid.server.served_model import FINGERPRINT, ServedModel
from pellucid.server.serving import Handlers

API_VERSION = "0.13.0"  # of the Ollama whose protocol this is; clients compare it


class OllamaModels(Handlers):
    """The handlers of the routes."""

    async def root(self, call: Call) -> Reply:
        """The live page for browsers; for Ollama's clients the text "Ollama is running"."""
        return Reply(b"Ollama is running", media_type="text/plain; charset=utf-8")

    async def version(self, call: Call) -> Reply:
        """The version of Ollama whose protocol this is."""
        return json_reply({"version": API_VERSION, "server": FINGERPRINT})

    async def tags(self, call: Call) -> Reply:
        """The served model."""
        return json_reply({"models": [self._listed()]})

    async def ps(self, call: Call) -> Reply:
        """The loaded model, with its context length."""
        loaded = {"expires_at": "9999-12-31T00:00:00Z", "size_vram": 0}
        return json_reply(
            {"models": [{**self._listed(), **loaded, "context_length": self.model.max_model_len}]}
        )

    async def show(self, call: Call) -> Reply:
        """Facts of the model, its template and what it can do."""
        body = await self.service.read_body(call, SHOW_FIELDS)
        if not (name := body.model or body.name):
            raise refused("model: must be a name", "model")
        self.model.check_name(name)
        details = self.model.details()
        family = details["architecture"].lower()
        defaults = self.model.default_sampling_params
        return json_reply(
            {
                "modelfile": "",
                "parameters": f"temperature {defaults.temperature}\ntop_p {defaults.top_p}",
                "template": self.model.tokenizer.chat_template or "",
                "details": _details(self.model),
                "model_info": {
                    "general.architecture": family,
                    "general.parameter_count": details["num_parameters"],
                    f"{family}.context_length": self.model.max_model_len,
                    f"{family}.embedding_length": details["hidden_size"],
                    f"{family}.block_count": details["num_layers"],
                    f"{family}.attention.head_count": details["num_heads"],
                    f"{family}.attention.head_count_kv": details["num_kv_heads"],
                },
                "capabilities": self._capabilities(),
                "modified_at": time_text(datetime.fromtimestamp(self.model.created, timezone.utc)),
            }
        )

    def _capabilities(self) -> list[str]:
        found = {
            "completion": True,
            "tools": self.tokenizer.chat_template_mentions("tools"),
            "thinking": self.tokenizer.chat_template_mentions("enable_thinking"),
        }
        return [name for name, has in found.items() if has]

    def _listed(self) -> dict[str, Any]:
        name = self.model.name if ":" in self.model.name else f"{self.model.name}:latest"
        facts = msgspec.json.encode([self.model.name, self.model.details()])
        return {
            "name": name,
            "model": name,
            "modified_at": time_text(datetime.fromtimestamp(self.model.created, timezone.utc)),
            "size": self.model.weight_bytes,
            "digest": hashlib.sha256(facts).hexdigest(),  # of name and facts: tells models apart
            "details": _details(self.model),
        }


def _details(model: ServedModel) -> dict[str, Any]:
    details = model.details()
    family = details["architecture"].lower()
    return {
        "parent_model": "",
        "format": details["file_format"],
        "family": family,
        "families": [family],
        "parameter_size": _short(details["num_parameters"]),
        "quantization_level": details["quantization"],
    }


def _short(count: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)
