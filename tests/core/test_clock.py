import pytest

from headrace.core.clock import ManualClock
from headrace.errors import ConfigError


def test_a_manual_clock_moves_only_when_told():
    clock = ManualClock(10.0)
    assert (clock(), clock()) == (10.0, 10.0)
    clock.advance(2.5)
    assert clock() == 12.5
    with pytest.raises(ConfigError, match="backwards"):
        clock.advance(-1)
