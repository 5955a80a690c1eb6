"""Run by test_ring_kill.py: forks producers and consumers around one ring, kills them at random, and checks the books.

Every producer writes the number of its last accepted message to a file, every consumer appends what it received to one;
both files outlive a SIGKILL. Usage: ring_torture.py KIND SEED SECONDS PRODUCERS CONSUMERS FOLDER
"""

import os
import random
import signal
import struct
import sys
import time
import zlib
from pathlib import Path

import numpy as np

from headrace.core import ring as rings
from headrace.errors import ChannelClosed, Conflict, DeadlineExceeded, Unavailable

BATCH = 8
HEAD = struct.Struct("<IIII")  # producer, number, length of the filler, checksum of the filler
PATIENCE = (DeadlineExceeded, Unavailable, Conflict)  # a survivor's reasons to try again


def message(producer, number):
    filler = bytes([(producer * 31 + number) & 0xFF]) * (number * 7 % 200)
    return HEAD.pack(producer, number, len(filler), zlib.crc32(filler)) + filler


def produce(ring, uid, folder, stop):
    dice = random.Random(uid)
    books = os.open(folder / f"sent-{uid}", os.O_CREAT | os.O_WRONLY)
    number = 0
    while not stop.exists():
        batch = [message(uid, number + i) for i in range(1, dice.randint(2, BATCH + 1))]
        try:
            if dice.random() < 0.3:
                view = ring.reserve(timeout_s=0.2)
                half = len(batch[0]) // 2
                view[:half] = batch[0][:half]
                if dice.random() < 0.2:
                    time.sleep(0.002)  # a wide target
                view[half : len(batch[0])] = batch[0][half:]
                ring.commit(len(batch[0]))
                number += 1
            else:
                number += ring.push_many(batch, timeout_s=0.2)
        except PATIENCE:
            continue
        os.pwrite(books, struct.pack("<I", number), 0)


def consume(ring, uid, folder, stop):
    dice = random.Random(uid)
    books = os.open(folder / f"received-{uid}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    while True:
        try:
            if dice.random() < 0.3:
                view = ring.peek(timeout_s=0.2)
                if dice.random() < 0.2:
                    time.sleep(0.002)
                got = [bytes(view)]
                ring.release()
            else:
                got = ring.pop_many(dice.randint(1, BATCH), timeout_s=0.2)
        except ChannelClosed:
            return
        except PATIENCE:
            continue
        lines = []
        for one in got:
            producer, number, length, _ = HEAD.unpack_from(one)
            torn = one != message(producer, number) or length != len(one) - HEAD.size
            lines.append(struct.pack("<II", producer, 0 if torn else number))
        os.write(books, b"".join(lines))


class Herd:
    """The children, by role; a killed one is replaced by a new one with a new uid."""

    def __init__(self, ring, folder, counts):
        self.ring, self.folder, self.stop = ring, folder, folder / "stop"
        self.next_uid = 1
        self.live = {}  # pid -> (role, uid)
        self.killed = {"produce": 0, "consume": 0}
        for role, count in counts.items():
            for _ in range(count):
                self.spawn(role)

    def spawn(self, role):
        uid, self.next_uid = self.next_uid, self.next_uid + 1
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                own = type(self.ring).attach(self.ring.name)
                {"produce": produce, "consume": consume}[role](own, uid, self.folder, self.stop)
                del own
                status = 0
            finally:
                if status:
                    sys.excepthook(*sys.exc_info())
                os._exit(status)
        self.live[pid] = (role, uid)

    def kill_one(self, dice):
        pid = dice.choice(sorted(self.live))
        role, _ = self.live.pop(pid)
        os.kill(pid, signal.SIGKILL)
        if dice.random() < 0.5:
            time.sleep(dice.random() * 0.01)  # a zombie for a while
        os.waitpid(pid, 0)
        self.killed[role] += 1
        self.spawn(role)

    def join(self, role):
        for pid in [pid for pid, (own, _) in self.live.items() if own == role]:
            assert os.waitpid(pid, 0)[1] == 0, f"{role} {self.live[pid]} failed"
            del self.live[pid]


def audit(herd, folder):
    received = [np.fromfile(path, np.uint32).reshape(-1, 2) for path in sorted(folder.glob("received-*"))]
    for journal in received:
        assert (journal[:, 1] != 0).all(), "a torn message"
        for producer in np.unique(journal[:, 0]):
            numbers = journal[journal[:, 0] == producer, 1].astype(np.int64)
            assert (np.diff(numbers) > 0).all(), f"messages of {producer} out of order"
    together = np.concatenate(received)
    assert len(np.unique(together, axis=0)) == len(together), "a message arrived twice"
    arrived = set(map(tuple, together.tolist()))
    sent = 0
    missing = 0
    for path in folder.glob("sent-*"):
        uid = int(path.name.removeprefix("sent-"))
        (last,) = struct.unpack("<I", path.read_bytes() or bytes(4))
        sent += last
        missing += sum((uid, number) not in arrived for number in range(1, last + 1))
    allowed = herd.killed["consume"] * BATCH  # what a consumer held when it was killed goes with it
    assert missing <= allowed, f"{missing} of {sent} messages lost, {allowed} explained by killed consumers"
    return f"{sent} sent, {len(together)} received, {missing} lost with {herd.killed}"


def main():
    kind, seed, seconds, producers, consumers, folder = sys.argv[1:]
    dice, folder = random.Random(int(seed)), Path(folder)
    ring = getattr(rings, kind).create(slots=16, slot_bytes=256)
    herd = Herd(ring, folder, {"produce": int(producers), "consume": int(consumers)})
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        time.sleep(dice.random() * 0.03)
        herd.kill_one(dice)
    assert min(herd.killed.values()) > 0
    survivors = {uid for role, uid in herd.live.values() if role == "produce"}
    deadline = time.monotonic() + 30
    while not all((folder / f"sent-{uid}").exists() and (folder / f"sent-{uid}").stat().st_size for uid in survivors):
        assert time.monotonic() < deadline, "a surviving producer is stuck"
        time.sleep(0.01)
    herd.stop.touch()
    herd.join("produce")
    ring.close()
    herd.join("consume")
    print(audit(herd, folder))


main()
