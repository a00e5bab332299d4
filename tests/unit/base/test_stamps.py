"""Stamps: equal while nothing was replaced, different when something was, `None` where nothing is."""

import os

from router.base.stamps import stamps_of


def test_stamps_stay_equal_until_a_file_is_replaced(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("a")
    two.write_text("b")
    before = stamps_of((one, two))
    assert stamps_of((one, two)) == before
    new = tmp_path / "new"
    new.write_text("c")
    os.utime(new, ns=(two.stat().st_mtime_ns, two.stat().st_mtime_ns))
    new.replace(two)
    after = stamps_of((one, two))
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_what_is_not_there_or_cannot_be_a_path_has_no_stamp(tmp_path):
    assert stamps_of((tmp_path / "no", tmp_path / "a\0b")) == (None, None)


def test_a_link_that_leads_elsewhere_is_another_file(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    link = tmp_path / "link"
    link.symlink_to("one")
    before = stamps_of((link,))
    link.unlink()
    link.symlink_to("two")
    assert stamps_of((link,)) != before
