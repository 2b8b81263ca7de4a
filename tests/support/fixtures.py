"""Fixtures of most tests that look at a whole site; a module that needs another site has a fixture `site` of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_ams.service import FakeAMS
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    return SiteUnderTest(tmp_path, pki, fake_ams)
