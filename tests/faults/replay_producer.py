"""Run by test_replay_kill.py: pushes rows whose sum is known, in batches of random size, until killed.

Usage: replay_producer.py NAME UID
"""

import sys

import numpy as np

from headrace.rl.buffers import ReplayBuffer


def main():
    name, uid = sys.argv[1], int(sys.argv[2])
    buffer = ReplayBuffer.attach(name)
    dice = np.random.default_rng(uid)
    number = 0
    while True:
        n = int(dice.integers(1, 150))
        pixels = dice.integers(0, 256, (n, 300), dtype=np.uint8)
        numbers = np.arange(number, number + n)
        sums = ((pixels.astype(np.int64) * np.arange(1, 301)).sum(1) + uid * 7 + numbers) % 65521
        buffer.push(pixels=pixels, uid=np.full(n, uid), number=numbers, crc=sums.astype(np.float32))
        number += n


if __name__ == "__main__":
    main()
