"""Ollama's routes about the served model.

https://docs.ollama.com/api
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import msgspec

from pellucid.server.endpoint import Call, Reply, json_reply
from pellucid.server.errors import refused
from pellucid.server.protocols.ollama_api.fields import SHOW_FIELDS
from pellucid.server.protocols.ollama_api.writer import time_text
from pellucid.server.served_model import FINGERPRINT, ServedModel
from pellucid.server.serving import Serving

API_VERSION = "0.13.0"  # of the Ollama whose protocol this is; clients compare it


@dataclass
class OllamaModels:
    """The handlers of the routes."""

    serving: Serving

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
        model = self.serving.model
        loaded = {"expires_at": "9999-12-31T00:00:00Z", "size_vram": 0}
        return json_reply(
            {"models": [{**self._listed(), **loaded, "context_length": model.max_model_len}]}
        )

    async def show(self, call: Call) -> Reply:
        """Facts of the model, its template and what it can do."""
        body = SHOW_FIELDS.decode(call.body, call.warnings)
        model = self.serving.model
        if not (name := body.model or body.name):
            raise refused("model: must be a name", "model")
        model.check_name(name)
        details = model.details()
        family = details["architecture"].lower()
        defaults = model.default_sampling_params
        return json_reply(
            {
                "modelfile": "",
                "parameters": f"temperature {defaults.temperature}\ntop_p {defaults.top_p}",
                "template": model.tokenizer.chat_template or "",
                "details": _details(model),
                "model_info": {
                    "general.architecture": family,
                    "general.parameter_count": details["num_parameters"],
                    f"{family}.context_length": model.max_model_len,
                    f"{family}.embedding_length": details["hidden_size"],
                    f"{family}.block_count": details["num_layers"],
                    f"{family}.attention.head_count": details["num_heads"],
                    f"{family}.attention.head_count_kv": details["num_kv_heads"],
                },
                "capabilities": self._capabilities(),
                "modified_at": time_text(datetime.fromtimestamp(model.created, timezone.utc)),
            }
        )

    def _capabilities(self) -> list[str]:
        tokenizer = self.serving.model.tokenizer
        found = {
            "completion": True,
            "tools": tokenizer.chat_template_mentions("tools"),
            "thinking": tokenizer.chat_template_mentions("enable_thinking"),
        }
        return [name for name, has in found.items() if has]

    def _listed(self) -> dict[str, Any]:
        model = self.serving.model
        name = model.name if ":" in model.name else f"{model.name}:latest"
        facts = msgspec.json.encode([model.name, model.details()])
        return {
            "name": name,
            "model": name,
            "modified_at": time_text(datetime.fromtimestamp(model.created, timezone.utc)),
            "size": model.weight_bytes,
            "digest": hashlib.sha256(facts).hexdigest(),  # of name and facts: tells models apart
            "details": _details(model),
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
