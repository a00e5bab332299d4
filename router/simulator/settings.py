"""What a simulated replica is made of: its capacities and rates, checked when they are given."""

from dataclasses import dataclass

from router.base.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """Capacities and rates of one simulated replica. Raises `SettingsError` where they make no sense."""

    name: str = "sim"
    """What the replica calls itself."""
    model: str = "sim-model"
    """The one model that it serves."""
    block_size: int = 16
    """Tokens a KV block."""
    kv_blocks: int = 37_500
    """Blocks of device KV, two at least: vLLM's `num_gpu_blocks`, of which it never uses one. The default
    holds 600k tokens."""
    host_kv_blocks: int = 0
    """Blocks of host KV, where what the device evicts goes; 0 = no host tier."""
    prefill_tps: float = 8_000.0
    """Prompt tokens computed a second."""
    decode_tps: float = 50.0
    """Tokens a second of one sequence while nothing is prefilled."""
    prefill_double_tokens: float = 0.0
    """How many tokens before it make a prompt token cost twice as much as the first; 0 = none do."""
    decode_double_seqs: float = 0.0
    """How many sequences more make a step that decodes take twice as long as with one; 0 = none do."""
    decode_double_tokens: float = 0.0
    """How many tokens of decoding sequences make a step take twice as long as with none; 0 = none do."""
    step_ms: float = 0.0
    """Milliseconds that a step which only prefills takes beside its prompt tokens."""
    max_num_seqs: int = 256
    """Sequences in a step at most."""
    batch_tokens: int = 8_192
    """Tokens in a step at most: prompts are prefilled in chunks that fit beside the decodes."""
    time_scale: float = 1.0
    """Simulated seconds a real second."""
    max_model_len: int = 131_072
    """Prompt and reply together at most; the device's KV bounds it further."""
    host_gbps: float = 400.0
    """Gigabits a second from host to device KV."""
    salts_messages: bool = True
    """Whether `/v1/messages` knows `cache_salt`: vLLM before 0.27 drops it there."""
    kv_events: int = 0
    """Port on which KV events are published, replayed on the tenth above it; 0 = none are."""
    two_way: bool = True
    """Whether it fetches what decode replicas offer, and offers what it decoded (`bidirectional_kv_xfer`).
    One that does not, and is told to, never answers."""
    load_failure: str = "fail"
    """What becomes of a request whose fetch fails: `fail` answers 500, `recompute` computes."""
    prefill_lease_s: float = 30.0
    """For how long a prompt's blocks are kept for a decode replica (`kv_lease_duration`)."""
    decode_pin_s: float = 480.0
    """For how long those of a decoded turn are kept (`decoder_kv_blocks_ttl`)."""
    recompute_threshold: int = 64
    """Tokens below which nothing is fetched back from decode (`kv_recompute_threshold`)."""
    streams_offer: bool = False
    """Whether the last chunk of a stream says what is kept, as vLLM's does from 0.33 on."""
    kv_bytes_per_token: int = 163_840
    """KV bytes of one token over all layers."""

    def __post_init__(self) -> None:
        whole = ("block_size", "max_num_seqs", "batch_tokens", "max_model_len")
        rates = ("prefill_tps", "decode_tps", "time_scale", "kv_bytes_per_token")
        faults = [
            f"{field}: must be at least 1, not {value}" for field in whole if (value := self._of(field)) < 1
        ]
        if self.kv_blocks < 2:
            faults.append(f"kv_blocks: must be at least 2, not {self.kv_blocks}: one is never used")
        faults += [
            f"{field}: must be above 0, not {value}" for field in rates if not (value := self._of(field)) > 0
        ]
        faults += [
            f"{field}: must not be negative"
            for field in (
                "host_kv_blocks",
                "host_gbps",
                "prefill_double_tokens",
                "decode_double_seqs",
                "decode_double_tokens",
                "step_ms",
            )
            if not self._of(field) >= 0
        ]
        if self.host_kv_blocks > 0 and self.host_gbps == 0:
            faults.append("host_kv_blocks: a host tier needs host_gbps above 0 to be read back")
        if self.load_failure not in ("fail", "recompute"):
            faults.append(f"load_failure: must be fail or recompute, not {self.load_failure}")
        if not self.model:
            faults.append("model: must not be empty")
        if faults:
            raise SettingsError(faults)

    def _of(self, field: str) -> float:
        value: float = getattr(self, field)
        return value

    @property
    def context_tokens(self) -> int:
        """Prompt and reply together at most: what the model allows and the device's KV can hold."""
        return min(self.max_model_len, self.usable_blocks * self.block_size)

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can hold: vLLM keeps one to itself."""
        return self.kv_blocks - 1

    @property
    def host_block_s(self) -> float:
        """Seconds to bring one block from host to device."""
        return self.block_size * self.kv_bytes_per_token * 8 / (self.host_gbps * 1e9)
