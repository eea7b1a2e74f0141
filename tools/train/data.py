"""Batches of records from the Rust generator."""

import json
import os
import random
import subprocess
import threading
import queue

import numpy as np
import torch


def token_ids(binary):
    """Token text to id, from the generator's `tokenizer.json`."""
    text = subprocess.run([binary, "tokenizer"], capture_output=True, text=True, check=True).stdout
    return json.loads(text)["model"]["vocab"]


def ranges(ids):
    """Id ranges `[first, end)` of digits, names and operation signs."""
    return (ids["0"], ids["9"] + 1), (ids["9"] + 1, ids["+"]), (ids["+"], ids["*"] + 1)


class Records:
    """Streams records from `chain_dump records …` and forms batches of similar length."""

    def __init__(self, binary, seed, first, recall, judge, check, low, high, tokens_per_batch, long=0, long_max=0, pool=1536,
                 extra=None, name_first=1.0):
        self.command = [binary, "records", *map(str, (seed, first, recall, judge, check, low, high, long, max(long_max, high)))]
        self.tokens_per_batch = tokens_per_batch
        self.pool = pool
        self.extra = extra or []
        self.name_first = name_first
        ids = token_ids(binary)
        self.expression_first = (ids["gives"], ids["take"])
        self.rng = random.Random(seed * 1_000_003 + first)
        self.queue = queue.Queue(maxsize=64)
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE)
        threading.Thread(target=self._fill, daemon=True).start()

    def _fill(self):
        taken = 0
        while True:
            records = [read_record(self.process.stdout) for _ in range(self.pool)]
            taken += len(records)
            if self.extra:
                records += self.rng.sample(self.extra, min(len(self.extra), self.pool // 12))
            if self.name_first < 1:
                records = [r for r in records if self.rng.random() < self.name_first or np.isin(self.expression_first, r[0]).any()]
            records.sort(key=lambda r: len(r[0]) + self.rng.random() * 8)
            batches, current = [], []
            for record in records:
                width = -(-(len(record[0]) - 1) // 16) * 16
                if current and (len(current) + 1) * width > self.tokens_per_batch:
                    batches.append(current)
                    current = []
                current.append(record)
            batches.append(current)
            self.rng.shuffle(batches)
            for batch in batches:
                self.queue.put((batch, taken))

    def next(self):
        batch, taken = self.queue.get()
        return collate(batch), taken


def read_record(stream):
    length = int.from_bytes(stream.read(2), "little")
    return (np.frombuffer(stream.read(length), np.uint8), np.frombuffer(stream.read(length), np.uint8))


def read_records(path):
    """All records of a file."""
    records, size = [], os.path.getsize(path)
    with open(path, "rb") as f:
        while f.tell() < size:
            records.append(read_record(f))
    return records


def collate(batch):
    width = -(-(max(len(t) for t, _ in batch) - 1) // 16) * 16
    ids = np.zeros((len(batch), width), np.int64)
    targets = np.full((len(batch), width), -100, np.int64)
    for row, (tokens, wanted) in enumerate(batch):
        n = min(len(tokens), width)
        ids[row, :n] = tokens[:n]
        targets[row, :n] = np.where(wanted[:n] == 255, -100, wanted[:n].astype(np.int64))
    return torch.from_numpy(ids), torch.from_numpy(targets)
