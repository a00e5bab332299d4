"""Writes a small Llama with random weights for tests on the real engine: no hub, nothing downloaded, the same
bytes for the same arguments.

A token is a byte, so that the length of a text is its count of tokens. The rows of the output layer for
bytes that are not printable are zero: greedy decoding, which takes the largest logit, then writes readable
text that never ends by itself. Needs torch and safetensors; run it with the engine's Python.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SPECIAL = ("<|pad|>", "<|turn|>", "<|end|>")
PRINTABLE = range(0x20, 0x7F)

CHAT_TEMPLATE = """\
{%- if tools %}<|turn|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|end|>{% endif %}
{%- for message in messages %}<|turn|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>{"name": "{{ call.function.name }}",
"arguments": {{ call.function.arguments | tojson }}}</tool_call>
{%- endfor %}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|turn|>assistant
{% endif %}"""


def byte_alphabet() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary, by byte.

    Bytes that print in Latin-1 stand for themselves; the others are counted up from U+0100, in order.
    """
    prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in prints else next(others)) for byte in range(0x100)]


def write_tokenizer(folder: Path, context: int) -> int:
    """Write the tokenizer's files; returns the number of tokens."""
    vocabulary = {character: index for index, character in enumerate(byte_alphabet())}
    special = [
        {
            "id": len(vocabulary) + index,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for index, content in enumerate(SPECIAL)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    _write(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": special,
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        },
    )
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": context,
            "pad_token": SPECIAL[0],
            "eos_token": SPECIAL[2],
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
        },
    )
    return len(vocabulary) + len(SPECIAL)


def write_model(folder: Path, args: argparse.Namespace, tokens: int) -> int:
    """Write configuration and weights; returns the number of parameters."""
    vocabulary = -(-tokens // 64) * 64
    head = args.hidden // args.heads
    _write(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": vocabulary,
            "hidden_size": args.hidden,
            "intermediate_size": args.inner,
            "num_hidden_layers": args.layers,
            "num_attention_heads": args.heads,
            "num_key_value_heads": args.kv_heads,
            "head_dim": head,
            "hidden_act": "silu",
            "max_position_embeddings": args.context,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": None,
            "pad_token_id": tokens - 3,
            "eos_token_id": tokens - 1,
            "torch_dtype": "float32",
        },
    )
    chance = torch.Generator().manual_seed(args.seed)

    def weight(*shape: int, spread: float = 0.05) -> torch.Tensor:
        return torch.randn(*shape, generator=chance) * spread

    # Large queries and keys: attention then picks few tokens out of thousands, so that each history gives an
    # answer of its own, and a wrong block shows in it.
    tensors = {
        "model.embed_tokens.weight": weight(vocabulary, args.hidden, spread=1.0),
        "model.norm.weight": torch.ones(args.hidden),
    }
    for layer in range(args.layers):
        name = f"model.layers.{layer}."
        for projection, rows, columns in (
            ("self_attn.q_proj", args.hidden, args.hidden),
            ("self_attn.k_proj", args.kv_heads * head, args.hidden),
            ("self_attn.v_proj", args.kv_heads * head, args.hidden),
            ("self_attn.o_proj", args.hidden, args.hidden),
            ("mlp.gate_proj", args.inner, args.hidden),
            ("mlp.up_proj", args.inner, args.hidden),
            ("mlp.down_proj", args.hidden, args.inner),
        ):
            sharper = 2.5 if projection in ("self_attn.q_proj", "self_attn.k_proj") else 1.0
            tensors[f"{name}{projection}.weight"] = weight(rows, columns, spread=sharper * columns**-0.5)
        tensors[f"{name}input_layernorm.weight"] = torch.ones(args.hidden)
        tensors[f"{name}post_attention_layernorm.weight"] = torch.ones(args.hidden)
    output = weight(vocabulary, args.hidden, spread=args.hidden**-0.5)
    silent = [row for row in range(vocabulary) if row not in PRINTABLE]
    output[silent] = 0.0
    tensors["lm_head.weight"] = output
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return sum(tensor.numel() for tensor in tensors.values())


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--inner", type=int, default=768)
    parser.add_argument("--context", type=int, default=16384)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    tokens = write_tokenizer(args.folder, args.context)
    parameters = write_model(args.folder, args, tokens)
    print(f"{args.folder}: {parameters / 1e6:.1f} M parameters, {tokens} tokens")


if __name__ == "__main__":
    main()
