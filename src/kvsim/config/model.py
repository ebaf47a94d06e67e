"""A model's facts from a Hugging Face ``config.json``: KV bytes per token and rank, weight bytes per GPU, context length."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim import bundled
from kvsim.config.resolved import Line
from kvsim.config.yamlfile import read_text
from kvsim.errors import ConfigError

KV_ITEM_BYTES = {"auto": 2.0, "bf16": 2.0, "bfloat16": 2.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "fp4_e2m1": 0.5 + 1 / 16}
MAX_VALUE = 10**9


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """One model. ``config``: the (text) config as data; ``facts``: kvsim's own block (source, date, weight bytes).

    ``kind``: mla or gqa. ``kv_layers``: layers that keep full-context KV; ``window_layers`` keep at most ``window`` tokens.
    """

    name: str
    config: dict[str, Any]
    facts: dict[str, Any]
    kind: str
    layers: int
    kv_layers: int
    window_layers: int
    window: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    kv_lora_rank: int
    rope_dim: int
    context_length: int
    vocab: int

    def kv_bytes_per_token(self, tp: int, dtype: str = "auto", *, all_layers: bool = True) -> int:
        """Return KV bytes of one token on one rank (srt/model_executor: get_cell_size_per_token); MLA does not depend on ``tp``."""
        layers = self.kv_layers + (self.window_layers if all_layers else 0)
        return int(self.kv_values_per_layer(tp) * layers * self.item_bytes(dtype)) + self.index_bytes

    @property
    def index_bytes(self) -> int:
        """Bytes per token of a sparse-attention indexer's keys (DeepSeek-V3.2): fp8 keys and one fp32 scale per 128, every layer."""
        dim = self.config.get("index_head_dim")
        return (dim + dim // 128 * 4) * self.layers if isinstance(dim, int) and not isinstance(dim, bool) and 0 < dim < 10**5 else 0

    def kv_values_per_layer(self, tp: int) -> int:
        """Return KV elements per token, layer and rank."""
        if self.kind == "mla":
            return self.kv_lora_rank + self.rope_dim
        return max(1, self.kv_heads // tp) * (self.head_dim + self.v_head_dim)

    def item_bytes(self, dtype: str) -> float:
        """Return bytes of one KV element."""
        return KV_ITEM_BYTES[dtype]

    def kv_line(self, tp: int, dtype: str) -> Line:
        """Return the arithmetic of KV bytes per token, in words."""
        value = self.kv_bytes_per_token(tp, dtype)
        layers = self.kv_layers + self.window_layers
        item = self.item_bytes(dtype)
        if self.kind == "mla":
            words = f"{layers} layers x ({self.kv_lora_rank} latent + {self.rope_dim} rope) x {item:g} B, the same on every rank"
        else:
            shared = max(1, self.kv_heads // tp)
            words = f"{layers} layers x {shared} KV heads of this rank x ({self.head_dim} + {self.v_head_dim}) x {item:g} B"
        if self.index_bytes:
            words += f" + {self.index_bytes:,} B of indexer keys"
        if self.window_layers:
            words += f"; {self.window_layers} of them keep a window of {self.window} tokens but are counted in full here"
        return Line("KV bytes per token and rank", value, "B", words)


def load_model(given: str | dict[str, Any]) -> ModelProfile:
    """Return the profile of a bundled name, a path to a config.json, or an inline mapping."""
    if isinstance(given, dict):
        base = given.get("base")
        changes = {key: value for key, value in given.items() if key != "base"}
        if base is None:
            return model_of(changes, str((changes.get("kvsim") or {}).get("name") or "inline model"))
        data = _data_of(str(base))
        inner = data.get("text_config")
        if isinstance(inner, dict):
            return model_of({**data, "text_config": {**inner, **changes}}, str(base))
        return model_of({**data, **changes}, str(base))
    return model_of(_data_of(given), given)


def _data_of(name: str) -> dict[str, Any]:
    path = bundled.find("models", name, "model")
    try:
        data = json.loads(read_text(path, "model config"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must hold an object, not a {type(data).__name__}")
    index = path.parent / "model.safetensors.index.json"
    if "kvsim" not in data and path.name == "config.json" and index.is_file():
        data["kvsim"] = {"published_weight_bytes": _indexed_bytes(index), "source": str(index)}
    return data


def _indexed_bytes(path: Path) -> int | None:
    try:
        total = json.loads(read_text(path, "weight index")).get("metadata", {}).get("total_size")
    except (ValueError, AttributeError, RecursionError):
        raise ConfigError(f"{path}: not a weight index") from None
    return int(total) if isinstance(total, int) else None


class _Fields:
    """Reads whole numbers out of a config, refusing what cannot be one."""

    def __init__(self, data: Mapping[str, Any], origin: str) -> None:
        self.data, self.origin = data, origin

    def need(self, *names: str) -> int:
        value = self.have(*names)
        if value is None:
            raise ConfigError(f"{self.origin}: none of {', '.join(names)} is there; the KV arithmetic needs it")
        return value

    def have(self, *names: str) -> int | None:
        for name in names:
            value = self.data.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < MAX_VALUE:
                raise ConfigError(f"{self.origin}: {name} is {value!r:.60}; must be a whole number from 1 to {MAX_VALUE:,}")
            return value
        return None


def model_of(data: dict[str, Any], name: str) -> ModelProfile:
    """Return the profile that a config's data describes. Raises ConfigError naming the field."""
    inner = data.get("text_config")
    text = inner if isinstance(inner, dict) else data
    facts = data.get("kvsim") if isinstance(data.get("kvsim"), dict) else {}
    fields = _Fields(text, name)
    layers, hidden, heads = (
        fields.need("num_hidden_layers", "n_layer"),
        fields.need("hidden_size", "n_embd"),
        fields.need("num_attention_heads", "n_head"),
    )
    latent = fields.have("kv_lora_rank") or 0
    head_dim = fields.have("head_dim") or hidden // heads
    if head_dim < 1:
        raise ConfigError(f"{name}: hidden_size {hidden} over {heads} heads leaves no head_dim")
    full, windowed, window = _layer_kinds(text, layers, name)
    quant = text.get("quantization_config") or data.get("quantization_config")
    merged = dict(text)
    if quant is not None:
        merged["quantization_config"] = quant
    return ModelProfile(
        name=Path(name).stem if name.endswith(".json") else name,
        config=merged,
        facts=dict(facts or {}),
        kind="mla" if latent else "gqa",
        layers=layers,
        kv_layers=full,
        window_layers=windowed,
        window=window,
        hidden=hidden,
        heads=heads,
        kv_heads=fields.have("num_key_value_heads") or heads,
        head_dim=head_dim,
        v_head_dim=(fields.have("v_head_dim") or head_dim) if latent == 0 else head_dim,
        kv_lora_rank=latent,
        rope_dim=(fields.have("qk_rope_head_dim") or 0) if latent else 0,
        context_length=fields.have("max_position_embeddings", "n_positions", "max_sequence_length") or 131072,
        vocab=fields.need("vocab_size"),
    )


def _layer_kinds(text: Mapping[str, Any], layers: int, name: str) -> tuple[int, int, int]:
    """Return (layers with full KV, layers with a sliding window, window)."""
    window = text.get("sliding_window")
    window = window if isinstance(window, int) and not isinstance(window, bool) and window > 0 else 0
    kinds = text.get("layer_types")
    if isinstance(kinds, list) and kinds:
        if len(kinds) != layers:
            raise ConfigError(f"{name}: layer_types has {len(kinds)} entries for {layers} layers")
        sliding = sum(1 for kind in kinds if kind in ("sliding_attention", "chunked_attention"))
        full = sum(1 for kind in kinds if kind in ("full_attention", "attention", "global"))
        return full, sliding, window
    return layers, 0, 0
