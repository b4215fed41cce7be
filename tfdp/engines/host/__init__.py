"""An engine of NumPy and Python threads: collectives in host memory, over any transport."""

from tfdp.engines.host import programs
from tfdp.engines.host.driver import Driver
from tfdp.engines.host.engine import HostEngine
from tfdp.engines.host.transport import Lane, Request, Transport

__all__ = ["Driver", "HostEngine", "Lane", "Request", "Transport", "programs"]
