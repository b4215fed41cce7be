"""An engine of NumPy and Python threads: collectives in host memory, over any transport."""

from tfdp.communication.engines.host import collective_programs
from tfdp.communication.engines.host.byte_transport import ByteTransport, Lane, Request
from tfdp.communication.engines.host.driver import Driver
from tfdp.communication.engines.host.host_engine import HostEngine

__all__ = ["ByteTransport", "Driver", "HostEngine", "Lane", "Request", "collective_programs"]
