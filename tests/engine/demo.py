"""Two real vLLM replicas with the connector, a KV agent beside each, and the router in front of them.

    make engine-demo

An agent's session lives on one replica. That one is drained, as before an upgrade; the router prices the next
turn at the other one as a pull, and gives it a signed hint along. The other fetches the session's KV from the
first one's agent, and goes on nearly as fast as if it had always been there. Prints each turn: where it went,
how long the first token took, and where its KV came from.
"""

import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.real_engines import Replica, fleet, text
from support.real_router import Router, router_before

TURNS = 6
DRAINED_AFTER = 4


def main() -> None:
    chance = random.Random(3)
    print("starting two vLLM engines, two KV agents and the router ...", flush=True)
    with tempfile.TemporaryDirectory(prefix="homing-") as outer:
        folder = Path(outer) / "demo"
        folder.mkdir()
        with (
            fleet(folder, "ab", connector={"deadline_share": 0.5}) as replicas,
            router_before(folder, replicas) as router,
        ):
            show(router, replicas, chance)


def show(router: Router, replicas: dict[str, Replica], chance: random.Random) -> None:
    messages = [
        {"role": "system", "content": text(chance, 1500)},
        {"role": "user", "content": text(chance, 5000)},
    ]
    print("turn  replica decision   first token  prompt  cached  pulled")
    for number in range(1, TURNS + 1):
        before = {name: one.metrics().loaded_tokens() for name, one in replicas.items()}
        began = time.perf_counter()
        answer = router.chat(messages, "demo", tokens=1)
        seconds = time.perf_counter() - began
        name = answer.headers["x-homing-replica"]
        usage = answer.json()["usage"]
        pulled = replicas[name].metrics().loaded_tokens() - before[name]
        print(
            f"{number:>4}  {name:<8}{answer.headers['x-homing-decision']:<10}{seconds * 1000:>9.0f} ms"
            f"{usage['prompt_tokens']:>8}{usage['prompt_tokens_details']['cached_tokens']:>8}{pulled:>8.0f}",
            flush=True,
        )
        messages += [
            {"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"] or ""},
            {"role": "user", "content": text(chance, 200)},
        ]
        if number == DRAINED_AFTER:
            router.drain(name, True)
            print(f"      {name} is drained: the session must go elsewhere")


if __name__ == "__main__":
    main()
