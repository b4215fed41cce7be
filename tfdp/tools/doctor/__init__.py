"""The command `tfdp doctor`: it checks this installation and this cluster, and says what to change.

Importing this package alone loads neither TensorFlow nor NumPy.
"""

import dataclasses
import pathlib

from tfdp.base.command_line import check, option


@dataclasses.dataclass(frozen=True)
class DoctorOptions:
    """The choices of one examination.

    Raises:
      ValueError: A value is out of its range.

    >>> DoctorOptions(megabytes=4).large_elements
    1000000
    """

    megabytes: int = option(
        16, "size of the large all-reduce (%(default)s)", at_least=1, at_most=1000, metavar="M"
    )
    timeout_seconds: float = option(
        60.0,
        "seconds that the ranks may take to come, and a check to end (%(default)g)",
        above=0,
        metavar="S",
    )
    json: pathlib.Path | None = option(
        None,
        "also measure the links between ranks, and write them for `tfdp plan --links FILE`",
        writes=(),
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def large_elements(self) -> int:
        """The count of numbers (float32) in the large all-reduce."""
        return self.megabytes * 10**6 // 4
