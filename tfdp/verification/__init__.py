"""What `tfdp.verify` returns: the promise on the user's own program.

A program is trained on one device, on one device again from weights that are moved by one unit in
the last place, and under a strategy. What parts more than rounding explains is found, named, and,
where it can be, explained.
"""

from tfdp.verification.report import Difference, Report

__all__ = ["Difference", "Report"]
