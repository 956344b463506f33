"""Tally: many named means, one collective.

tally = Tally(group)                       # a process group, a DeviceMesh, an MPI communicator, or nothing
tally.add("loss", token_losses, mask)      # no collective, no copy to the host
means = tally.reduce()                     # one collective for all names
means["loss"].value, means["loss"].count   # None where nothing was counted
"""

from weighbridge.tally.entries import Extreme, Kind
from weighbridge.tally.tally import GlobalMeans, LocalMeans, Tally

__all__ = ["Extreme", "GlobalMeans", "Kind", "LocalMeans", "Tally"]
