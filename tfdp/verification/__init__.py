"""The verification that the user's own program trains under a strategy as on one device.

`tfdp.verify` trains the program on one device, on one device again from weights that are moved by
one unit in the last place, and under a strategy. It names each difference that rounding does not
explain, and its likely reason. Only the report's classes are public here.
"""

from tfdp.verification.verification_report import Difference, Report

__all__ = ["Difference", "Report"]
