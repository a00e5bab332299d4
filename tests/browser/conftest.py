from collections.abc import AsyncIterator, Iterator

import pytest
from selenium import webdriver
from support.browser import Browser, start_browser


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """One for all tests of this process."""
    driver = start_browser(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


@pytest.fixture
async def browser(chromium: webdriver.Chrome) -> AsyncIterator[Browser]:
    """A window that nobody has used. Fails if its console has anything that a test has not read."""
    window = Browser(chromium)
    await window.call(lambda: chromium.switch_to.new_window("window"))
    await window.console()
    yield window
    # By now the test's router is gone, and the page may have noticed.
    complaints = await window.console(gone=True)
    await window.call(lambda: chromium.close())
    await window.call(lambda: chromium.switch_to.window(chromium.window_handles[0]))
    assert complaints == []
