"""What `tfdp doctor` can be asked for."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class DoctorOptions:
    """The choices of one examination; they are checked here.

    Args:
        megabytes: size of the large all-reduce, in 10^6 bytes.
        timeout_seconds: how long all ranks may take to come, and how long a check may take.

    Raises:
        ValueError: a value is out of its range.

    Example:
        >>> DoctorOptions(megabytes=4).large_elements
        1000000
    """

    megabytes: int = 16
    timeout_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not 1 <= self.megabytes <= 1000:
            raise ValueError(
                f"`megabytes` must be from 1 to 1000; received {self.megabytes}; "
                "do `--megabytes 16`."
            )
        if not self.timeout_seconds > 0:  # written so that NaN is refused too
            raise ValueError(
                f"`timeout` must be positive, in seconds; received {self.timeout_seconds:g}; "
                "do `--timeout 60`."
            )

    @property
    def large_elements(self) -> int:
        """Numbers (float32) in the large all-reduce."""
        return self.megabytes * 10**6 // 4
