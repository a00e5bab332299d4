"""A fleet that is operated under steady load: only what ran on a replica that was killed may notice."""

import pytest

from loadtest.steady.clients import judge
from loadtest.steady.operations import KILLED, operate

pytestmark = pytest.mark.timeout(600)

# Decoding is slow, so that each stream is open most of the time while there are few chunks to relay.
FLAGS = ("--decode-tps", "20", "--prefill-tps", "12000")


@pytest.mark.parametrize("workers", [1, 2])
async def test_no_turn_fails_while_all_is_done_to_the_fleet_but_streams_that_run_on_the_one_killed(
    tmp_path, workers
):
    said: list[str] = []
    ended = await operate(tmp_path, 16, workers, FLAGS, said.append)
    verdict = judge(ended, KILLED)
    assert verdict.failed == ()
    assert verdict.turns > 10 * 16
    # Each step was taken, and turns went by after it: `operate` raises where one was not.
    assert [line.rpartition(" ")[2] for line in said[-1:]] == ["0"]
    assert len({turn.replica for turn in ended}) == 5
