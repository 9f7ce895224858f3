"""What the machine does beside a benchmark."""

import time

BUSY = "warning: the machine is busy ({:.0f} %): these figures are worth nothing"


def idle_share():
    """How much of the last 0.5 s the machine did nothing."""
    def read():
        with open("/proc/stat", encoding="ascii") as stat:
            numbers = [int(word) for word in stat.readline().split()[1:]]
        return numbers[3] + numbers[4], sum(numbers)

    first = read()
    time.sleep(0.5)
    second = read()
    return (second[0] - first[0]) / max(1, second[1] - first[1])
