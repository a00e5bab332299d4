"""Bodies of usual members are decoded in one look, and read as any other."""

import pytest

from router.base.errors import Refused
from router.base.ids import OPEN_TENANT
from router.dataplane.dialects import Dialect
from router.dataplane.reader import Read, RequestReader
from router.dataplane.reading import MAX_MODEL
from tests.support.bodies import read


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/other"])
def test_a_models_name_is_bounded_and_a_long_one_is_not_remembered(path: str) -> None:
    reader = RequestReader(body_fields=(), derive=True)
    assert read({"model": "m" * MAX_MODEL}, path, reader=reader).model == "m" * MAX_MODEL
    for _ in range(2):
        with pytest.raises(Refused, match="names a model in 513 bytes; 512 is the limit"):
            read({"model": "m" * (MAX_MODEL + 1)}, path, reader=reader)


USUAL = (
    b'{"model":"m","messages":[{"role":"user","content":"a"}],"stream":true,"max_tokens":5%b}',
    b'{"model":null,"stream":null,"messages":[],"temperature":0.5%b}',
)


@pytest.mark.parametrize("body", USUAL)
@pytest.mark.parametrize(
    "more",
    [
        *(b"", b',"cache_salt":"x"', b',"cache\\u005fsalt":"x"', b',"user":"u"', b',"unheard_of":{"a":[1]}'),
        *(b',"chat_template_kwargs":{"a":1}', b',"vllm_xargs":{"cache_salt":"x"}', b',"model":"n"'),
        *(b',"kv_transfer_params":null', b',"stream":false', b',"max_tokens":[1,2]', b',"tools":[{"a":1}]'),
        *(b',"stream_options":{"include_usage":true}', b',"m\\u0065ssages":[{"role":"user","content":"b"}]'),
        *(b',"model":5', b',"stream":"yes"', b',"messages":{}', b',"x":', b',"temperature":01', b'}{"a":1'),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("named", ["user", "model", "tools", "system", "messages", "stream_options.session"])
def test_a_body_of_usual_members_is_read_as_any_other(body, more, path, named):
    quick = RequestReader(body_fields=(named,), derive=True)
    slow = RequestReader(body_fields=(named,), derive=True)
    for reading in slow._readings.values():
        reading._usual = None

    def said(reader):
        try:
            read = reader.read(path, body % more, OPEN_TENANT)
        except Refused as refused:
            return str(refused)
        return {name: getattr(read, name) for name in vars(Read) if name[0] != "_" and name != "outline"}

    assert said(quick) == said(slow)


def test_bodies_of_usual_members_are_decoded_once_and_others_are_told_from_them():
    for more in (b',"user":"u"', b',"cache_salt":"x"', b',"chat_template":"x"', b',"unheard_of":1'):
        reading = RequestReader(body_fields=("user",), derive=True)._readings[Dialect.CHAT]
        assert reading.decode_usual(USUAL[0] % b"") is not None
        assert reading.decode_usual(USUAL[0] % more) is None


def test_after_a_body_of_other_members_it_is_not_tried_for_a_while():
    reading = RequestReader(body_fields=("user",), derive=True)._readings[Dialect.CHAT]
    assert reading.decode_usual(USUAL[0] % b',"unheard_of":1') is None
    tries = [reading.decode_usual(USUAL[0] % b"") is not None for _ in range(18)]
    assert tries == [False] * 16 + [True] * 2
