"""Agents for Locust: `LOADTEST_PROFILE=coding locust -f loadtest/locustfile.py --host http://127.0.0.1:8080`.

Each user plays one session of the profile after the other. Environment: `LOADTEST_PROFILE` (a shipped
profile's name or a file; `mix`), `LOADTEST_MODEL` (asked of the server where it is not given),
`LOADTEST_SEED` (0), and `LOADTEST_API_KEY`, if one is needed. loadtest/README.md says what the rows mean.
"""

import itertools
import os
import socket
import sys
import time
from typing import Any, ClassVar, Final

import gevent
import requests
from gevent.pool import Group
from locust import LoadTestShape, User, events, task
from locust.exception import StopUser
from requests.adapters import HTTPAdapter

from loadtest.agents.answers import Answer
from loadtest.agents.conversation import Conversation
from loadtest.agents.profile import Kind, Profile, load_profile
from loadtest.agents.sessions import Planner, SessionPlan, TurnPlan, place
from router.base.errors import SettingsError

_TIMEOUT_S: Final = (10, 600)
"""To connect, and between two pieces of an answer."""

_PARENT_HEADER: Final = "X-Parent-Session-ID"

# A client that reads slowly is held up only where the kernel does not read ahead for it.
_SLOW_BUFFER_BYTES: Final = 4096


def _settings() -> tuple[Profile, int]:
    try:
        return load_profile(os.environ.get("LOADTEST_PROFILE", "mix")), int(
            os.environ.get("LOADTEST_SEED", "0")
        )
    except SettingsError as error:
        sys.exit(f"LOADTEST_PROFILE: {error}")
    except ValueError:
        sys.exit(f"LOADTEST_SEED: a whole number is needed, not '{os.environ['LOADTEST_SEED']}'")


PROFILE, SEED = _settings()
PLANNER: Final = Planner(PROFILE, SEED)
_numbers = itertools.count()


class _Failed(Exception):
    """A turn that did not come through; the text says why."""


class Agent(User):  # type: ignore[misc]  # Locust's types are not followed: it is an extra
    """Plays sessions, one after the other."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.host:
            sys.exit("no server given: --host http://127.0.0.1:8080")
        self._base = str(self.host).rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if key := os.environ.get("LOADTEST_API_KEY"):
            self._headers["Authorization"] = f"Bearer {key}"

    def on_start(self) -> None:
        self._model = os.environ.get("LOADTEST_MODEL") or self._first_model()

    @task  # type: ignore[untyped-decorator]  # as above
    def session(self) -> None:
        self._play(PLANNER.session(next(_numbers)))

    def _first_model(self) -> str:
        with requests.Session() as http:
            try:
                answer = http.get(f"{self._base}/v1/models", headers=self._headers, timeout=_TIMEOUT_S)
                answer.raise_for_status()
                return str(answer.json()["data"][0]["id"])
            except (requests.RequestException, ValueError, LookupError) as error:
                self._tell("models", "/v1/models", 0.0, 0, error)
                gevent.sleep(1.0)
                raise StopUser from error

    def _play(self, plan: SessionPlan) -> None:
        kind = PROFILE.kinds[plan.kind]
        conversation = Conversation(
            plan, model=self._model, compaction=kind.compaction, exact_answers=PROFILE.exact_answers
        )
        began = time.perf_counter()
        headers = {**self._headers, PROFILE.header: plan.id}
        if plan.parent is not None:
            headers[_PARENT_HEADER] = plan.parent
        agents = Group()
        try:
            with requests.Session() as http:
                if kind.reads is not None:
                    http.mount("http", _SlowAdapter())
                for number, turn in enumerate(plan.turns):
                    gevent.sleep(turn.gap_s)
                    agents.join()
                    answer = self._turn(http, headers, conversation.ask(turn), kind, turn, plan.kind, number)
                    conversation.answered(answer.text)
                    if turn.agent is not None:
                        agents.spawn(self._play, turn.agent)
        except _Failed as error:
            self._tell("session", plan.kind, time.perf_counter() - began, 0, error)
        else:
            self._tell("session", plan.kind, time.perf_counter() - began, 0, None)
        finally:
            agents.kill()

    def _turn(
        self,
        http: requests.Session,
        headers: dict[str, str],
        body: bytes,
        kind: Kind,
        turn: TurnPlan,
        name: str,
        number: int,
    ) -> Answer:
        answer = Answer()
        row = f"{name} {place(number)}"
        began = time.perf_counter()
        size = 0
        try:
            url = f"{self._base}/v1/chat/completions"
            with http.post(url, body, headers=headers, stream=True, timeout=_TIMEOUT_S) as response:
                if response.status_code != 200:
                    raise _Failed(f"{response.status_code}: {response.text[:200]}")
                for piece in (
                    response.raw.stream(64, decode_content=True) if kind.reads else _pieces(response)
                ):
                    size += len(piece)
                    answer.feed(piece, time.perf_counter())
                    if kind.reads is not None:
                        gevent.sleep(len(piece) / kind.reads)
                    if turn.leaves_after is not None and len(answer.came_at) > (
                        turn.leaves_after * turn.answer_tokens
                    ):
                        break
            if answer.error is not None:
                raise _Failed(f"error event: {answer.error[:200]}")
            if not answer.complete and turn.leaves_after is None:
                raise _Failed("the stream ended before its end")
            if not answer.came_at:
                raise _Failed("an answer without content")
        except (requests.RequestException, OSError, ValueError, _Failed) as error:
            failure = error if isinstance(error, _Failed) else _Failed(f"{type(error).__name__}: {error}")
            self._tell("turn", row, time.perf_counter() - began, size, failure)
            raise failure from error
        self._tell("TTFT", row, answer.came_at[0] - began, size, None)
        if gaps := answer.gaps_s:
            self._tell("ITL", row, sum(gaps) / len(gaps), size, None)
        if answer.complete:
            self._tell("turn", row, time.perf_counter() - began, size, None)
        return answer

    def _tell(self, what: str, row: str, seconds: float, size: int, error: Exception | None) -> None:
        self.environment.events.request.fire(
            request_type=what,
            name=row,
            response_time=seconds * 1e3,
            response_length=size,
            exception=error,
            context={},
        )


def _pieces(response: requests.Response) -> Any:
    """What has come, as soon as it has."""
    return response.iter_content(chunk_size=None)


class _SlowAdapter(HTTPAdapter):
    """Connections with a small buffer."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        kwargs["socket_options"] = [(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)]
        super().init_poolmanager(*args, **kwargs)


if PROFILE.stages:

    class Stages(LoadTestShape):  # type: ignore[misc]  # as above
        """Users as the profile's stages say, whatever `--users` says."""

        use_common_options: ClassVar[bool] = False

        def tick(self) -> tuple[int, float] | None:
            at = self.get_run_time()
            if PROFILE.ends is not None and at >= PROFILE.ends:
                return None
            stage = next((stage for stage in reversed(PROFILE.stages) if stage.at <= at), PROFILE.stages[0])
            return stage.users, stage.a_second


@events.init.add_listener  # type: ignore[untyped-decorator]  # as above
def _say_what_is_played(**_: Any) -> None:
    print(f"loadtest: {PROFILE.about} (seed {SEED})", file=sys.stderr)
