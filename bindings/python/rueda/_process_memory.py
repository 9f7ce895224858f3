"""What the kernel says of this process's memory, and which of it other processes may have too."""

import bisect


def kibibytes(text):
    """{name: bytes} of lines such as ``VmHWM:  1234 kB`` (/proc/self/status, smaps_rollup)."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if len(words) == 2 and words[1] == "kB":
            found[name] = int(words[0]) << 10
    return found


def read_kibibytes(path):
    """The same of a file; empty where there is none."""
    try:
        with open(path) as file:
            return kibibytes(file.read())
    except OSError:
        return {}


class SharedMappings:
    """Memory that is mapped shared, as it is now.

    Parameters
    ----------
    maps : iterable of str
        Lines of /proc/self/maps.
    """

    def __init__(self, maps):
        self._begins, self._mappings = [], []
        for line in maps:
            words = line.split(None, 5)
            if words[1][3] != "s":
                continue
            begin, end = (int(word, 16) for word in words[0].split("-"))
            self._begins.append(begin)
            self._mappings.append((end, int(words[2], 16) - begin, words[3], int(words[4])))

    @classmethod
    def of_this_process(cls):
        try:
            with open("/proc/self/maps") as file:
                return cls(file)
        except OSError:
            return cls(())

    def place(self, address):
        """(device, inode, offset), the same in each process of the host; None: private memory."""
        at = bisect.bisect_right(self._begins, address) - 1
        if at < 0 or address >= self._mappings[at][0]:
            return None
        _, shift, device, inode = self._mappings[at]
        return device, inode, address + shift
