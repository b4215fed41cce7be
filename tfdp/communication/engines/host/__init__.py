"""An engine of NumPy and Python threads: collectives in host memory, over any transport."""

from tfdp.communication.engines.host import collective_programs
from tfdp.communication.engines.host.arrival_sums import ArrivalSums
from tfdp.communication.engines.host.byte_transport import ByteTransport, Lane, Request
from tfdp.communication.engines.host.driver import Driver
from tfdp.communication.engines.host.first_arrivals import ClosedSum, FirstArrivals
from tfdp.communication.engines.host.host_engine import HostEngine

__all__ = [
    "ArrivalSums",
    "ByteTransport",
    "ClosedSum",
    "Driver",
    "FirstArrivals",
    "HostEngine",
    "Lane",
    "Request",
    "collective_programs",
]
