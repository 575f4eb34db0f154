"""Sizes as people write them; JOBQ_MEMORY_LIMIT and --memory-limit are read by this."""

import pytest

from jobq.errors import ConfigurationError
from jobq.formats import sizes
from jobq.settings import Settings

MIB = 1024**2


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512M", 512 * MIB),
        ("2G", 2048 * MIB),
        ("1.5GiB", 1536 * MIB),
        ("64 kb", 64 * 1024),
        ("1t", 1024**4),
        (".5m", MIB // 2),
        ("96B", 96),
        ("1048576", MIB),
        (" 7 ", 7),
        ("0", 0),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert sizes.parse(text) == size


@pytest.mark.parametrize("text", ["", "M", "5X", "-5M", "nan", "inf", "1e9", "1M2", "5 mega", "1,5G", "٣M", "9" * 400])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write bytes, or a number with K, M, G or T: 512M|more than 1024 TiB"):
        sizes.parse(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (512 * MIB, "512 MiB"),
        (1024**4, "1 TiB"),
        (1024**5, "1024 TiB"),
    ],
)
def test_sizes_are_shown(size: int, text: str) -> None:
    assert sizes.show(size) == text


def test_the_limit_comes_from_its_variable() -> None:
    assert Settings().memory_limit is None
    assert Settings.from_environment({"JOBQ_MEMORY_LIMIT": "1.5G"}).memory_limit == 1536 * MIB
    assert Settings.from_environment({"JOBQ_MEMORY_LIMIT": "1.5G"}, memory_limit=2 * MIB).memory_limit == 2 * MIB


@pytest.mark.parametrize(
    ("text", "says"), [("lots", "'lots' is not a size"), ("512", "512 bytes is too little for any program")]
)
def test_a_wrong_limit_names_its_variable(text: str, says: str) -> None:
    """512 without a unit would kill every task at once."""
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_environment({"JOBQ_MEMORY_LIMIT": text})
    assert str(caught.value).startswith(f"JOBQ_MEMORY_LIMIT: {says}")
