"""What every surface of rueda shares: life cycle, exceptions, process sets, small helpers."""
