"""Numbers with units: bytes, seconds, rates."""

import pytest

from pellucid.cli.output.units import flops, num_bytes, rate, seconds, times


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (seconds(0.00085), "850 us"),
        (seconds(0.0213), "21.3 ms"),
        (seconds(0.99951), "1000 ms"),
        (seconds(1.239), "1.24 s"),
        (seconds(123.4), "123 s"),
        (num_bytes(0), "0 bytes"),
        (num_bytes(1023), "1023 bytes"),
        (num_bytes(1024), "1.00 KiB"),
        (num_bytes(216 * 1024), "216 KiB"),
        (num_bytes(5 * 1024**4 * 1024), "5120 TiB"),
        (flops(999), "999 FLOP"),
        (flops(1.2e9), "1.20 GFLOP"),
        (flops(7e16), "70.0 PFLOP"),
        (rate(64, 0.5), "128 tok/s"),
        (rate(64, 0.0), "- tok/s"),
        (rate(64, None), "- tok/s"),
        (times(0.5), "0.50x"),
        (times(9.996), "10.0x"),
        (times(99.96), "100x"),
    ],
)
def test_numbers_for_people(shown: str, expected: str) -> None:
    assert shown == expected
