"""Task encoders that a run of the tests names in its state file."""

import numpy as np

from epochal.batching.packing.samples import EncodedSample, RawSample
from epochal.batching.packing.task_encoder import SkipSample, TaskEncoder, stateless
from epochal.data_providers.protocol import IGNORED_LABEL


class Chat(TaskEncoder):
    """`{"question": …, "answer": …}`: learns the answer, of which it drops a random letter; skips empty answers."""

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: RawSample) -> EncodedSample:
        record = sample.record()
        question, answer = record["question"].encode(), record["answer"].encode()
        if not answer:
            raise SkipSample
        gap = self.rng.randrange(len(answer))
        answer = answer[:gap] + answer[gap + 1 :]
        tokens = np.frombuffer(question + answer, np.uint8).astype("<u2")
        labels = tokens.astype(np.int64)
        labels[: len(question)] = IGNORED_LABEL
        return EncodedSample(tokens, labels)

    def slice_batch(self, samples: list[EncodedSample]) -> list[list[EncodedSample]]:
        samples.sort(key=len)
        rows: list[list[EncodedSample]] = []
        while samples:
            row = [samples.pop()]
            room = self.context.row_tokens - len(row[0])
            while samples and len(samples[0]) <= room:
                row.append(samples.pop(0))
                room -= len(row[-1])
            rows.append(row)
        return rows
