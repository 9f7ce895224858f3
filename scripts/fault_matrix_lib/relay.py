"""A wire with a fault: passes frames between two devices of this namespace. relay.py DEVICE DEVICE delay|corrupt|reorder SEED

This kernel has no netem. Frames are read and written with their virtio header, so that segmentation and checksums stay offloaded: a
flipped bit then reaches the application as it would from a network card that checks in hardware, and only the application's own
checksum can find it.
"""

import heapq
import random
import select
import socket
import sys
import time

SOL_PACKET, PACKET_VNET_HDR, PACKET_OUTGOING, ETH_P_ALL = 263, 15, 4, 3
VNET_HEADER, SMALLEST_BODY = 10, 200
DELAY, JITTER = 0.2, 0.02  # seconds
FLIPPED, HELD, DOUBLED = 0.02, 0.1, 0.05  # of the frames


def open_device(name):
    device = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    device.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    device.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUFFORCE if hasattr(socket, "SO_RCVBUFFORCE") else 33, 32 << 20)
    device.bind((name, 0))
    device.setblocking(False)
    return device


def flip(frame, chance):
    """One bit of the second half: of data, not of a header."""
    if len(frame) < SMALLEST_BODY or chance.random() >= FLIPPED:
        return frame
    changed = bytearray(frame)
    changed[chance.randrange(len(frame) // 2, len(frame))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def main():
    first, second, fault, seed = sys.argv[1:]
    chance = random.Random(int(seed))
    devices = [open_device(first), open_device(second)]
    print("ready", flush=True)
    waiting, number, last = [], 0, [0.0, 0.0]
    while True:
        patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable = select.select(devices, [], [], patience)[0]
        now = time.monotonic()
        for device in readable:
            try:
                frame, address = device.recvfrom(VNET_HEADER + 70000)
            except BlockingIOError:
                continue
            if address[2] == PACKET_OUTGOING:
                continue
            side = devices.index(device)
            due = now
            if fault == "delay":  # in order
                due = last[side] = max(last[side], now + DELAY + chance.uniform(-JITTER, JITTER))
            elif fault == "reorder" and chance.random() < HELD:
                due = now + 0.005
            elif fault == "corrupt":
                frame = flip(frame, chance)
            for _ in range(2 if fault == "reorder" and chance.random() < DOUBLED else 1):
                number += 1
                heapq.heappush(waiting, (due, number, 1 - side, frame))
        while waiting and waiting[0][0] <= now:
            _, _, side, frame = heapq.heappop(waiting)
            try:
                devices[side].send(frame)
            except OSError:  # a full queue loses frames, as everywhere
                continue


main()
