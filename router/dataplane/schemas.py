"""What is decoded from JSON, as structs: the members that tell something, each of the type that it must have.

Apart from the modules that read them, since a struct is made by msgspec and cannot be compiled. Members that
are not named here are passed over by the decoder.
"""

import msgspec
from msgspec import UNSET, Raw, UnsetType


class Inner(msgspec.Struct, gc=False):
    """As much of a block within a block as tells whether it can go into a payload as it was sent."""

    type: str | None = None
    cache_control: Raw | UnsetType = UNSET


class Outer(msgspec.Struct, gc=False):
    """The same for a block of a message."""

    type: str | None = None
    cache_control: Raw | UnsetType = UNSET
    content: list[Inner] | str | None = None


class Facts(msgspec.Struct, gc=False):
    """The members of an event or of a body that tell something, each as sent."""

    id: Raw | UnsetType = UNSET
    type: Raw | UnsetType = UNSET
    choices: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    usage: Raw | UnsetType = UNSET
    message: Raw | UnsetType = UNSET
    response: Raw | UnsetType = UNSET
    kv_transfer_params: Raw | UnsetType = UNSET
    ec_transfer_params: Raw | UnsetType = UNSET


class Error(msgspec.Struct, gc=False):
    """What an error says of itself, in any dialect."""

    code: int | str | None = None
    type: str | None = None


class Details(msgspec.Struct, gc=False):
    """Of a prompt's tokens."""

    cached_tokens: int | None = None


class Counts(msgspec.Struct, gc=False):
    """Usage in any dialect."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class Answer(msgspec.Struct, gc=False):
    """What a whole answer tells, where it tells it as engines do."""

    id: Raw | UnsetType = UNSET
    usage: Counts | None = None
    kv_transfer_params: dict[str, Raw] | UnsetType | None = UNSET
    ec_transfer_params: dict[str, Raw] | UnsetType | None = UNSET


class PairPart(msgspec.Struct, gc=False):
    """A part of a message."""

    type: str | None = None


class PairMessage(msgspec.Struct, gc=False):
    """As much of a message as tells whether it is text."""

    content: Raw | UnsetType = UNSET


class PairChoice(msgspec.Struct, gc=False):
    """The tokens of an answer."""

    token_ids: Raw | UnsetType = UNSET
    prompt_token_ids: Raw | UnsetType = UNSET


class PairAnswer(msgspec.Struct, gc=False):
    """What a replica's answer tells of its tokens and of what it keeps."""

    id: Raw | UnsetType = UNSET
    usage: Raw | UnsetType = UNSET
    kv_transfer_params: Raw | UnsetType = UNSET
    prompt_token_ids: Raw | UnsetType = UNSET
    token_ids: Raw | UnsetType = UNSET
    choices: list[PairChoice] | UnsetType | None = UNSET


class TransferParams(msgspec.Struct, gc=False):
    """What replicas tell each other of KV to fetch, as far as it is looked at."""

    do_remote_prefill: bool | None = None
    do_remote_decode: bool | None = None
    remote_block_ids: list[Raw] | None = None
    """Lists of hundreds of numbers, which nobody looks at one by one."""
    remote_num_tokens: int | None = None
    remote_engine_id: str | None = None
    remote_request_id: str | None = None
    remote_host: str | None = None
    remote_port: int | None = None
