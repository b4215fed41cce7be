"""Verification that your own program trains under a strategy as on one device.

`tfdp.verify` trains the program on one device, again on one device from weights moved by one unit
in the last place, and under a strategy. It names each difference that rounding does not explain,
and its likely reason. The public names here are the report's classes.
"""

from tfdp.verification.verification_report import Difference, Report

__all__ = ["Difference", "Report"]
