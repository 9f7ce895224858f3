"""A language model in Horovod's API: sparse embeddings, two parameter groups, accumulation.

    ruedarun --horovod -np 2 python examples/horovod/language_model.py

Knows nothing of rueda: the same file runs on Horovod. The text is made up: each word is followed by
one of four words, so a model that has learnt the table reaches a perplexity near 4. The embedding's
gradient is sparse; ranks exchange only the rows of words that occurred.
"""

import argparse
import math

import horovod.torch as hvd
import torch
import torch.nn.functional as F

WORDS = 200
FOLLOWERS = 4


def make_text(length, seed):
    """A random walk over the words: int64[length]. The table of followers is every rank's."""
    table = torch.randint(WORDS, (WORDS, FOLLOWERS), generator=torch.Generator().manual_seed(7))
    choices = torch.randint(
        FOLLOWERS, (length,), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    text, word = [], seed % WORDS
    for choice in choices:
        text.append(word)
        word = table[word, choice].item()
    return torch.tensor(text)


class LanguageModel(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, width, sparse=True)
        self.rnn = torch.nn.GRU(width, width, batch_first=True)
        self.output = torch.nn.Linear(width, WORDS)

    def forward(self, words):
        hidden, _ = self.rnn(self.embedding(words))
        return self.output(hidden)

    def dense_parameters(self):
        return [(name, p) for name, p in self.named_parameters() if p is not self.embedding.weight]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--passes", type=int, default=2, help="backward passes in each step")
    args = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(1 + hvd.rank())  # different, so that the broadcast has work to do
    words = make_text(args.steps * args.passes * args.batch_size * (args.length + 1), hvd.rank())
    batches = words.reshape(args.steps, args.passes, args.batch_size, args.length + 1)

    model = LanguageModel()
    # Sparse gradients need an optimizer of their own; both are distributed.
    dense = hvd.DistributedOptimizer(
        torch.optim.Adam([p for _, p in model.dense_parameters()], lr=0.01),
        named_parameters=model.dense_parameters(),
        backward_passes_per_step=args.passes,
    )
    sparse = hvd.DistributedOptimizer(
        torch.optim.SparseAdam([model.embedding.weight], lr=0.02),
        named_parameters=[("embedding.weight", model.embedding.weight)],
        backward_passes_per_step=args.passes,
        op=hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(dense, root_rank=0)
    hvd.broadcast_optimizer_state(sparse, root_rank=0, model=model)

    for step, passes in enumerate(batches):
        dense.zero_grad()
        sparse.zero_grad()
        total = torch.zeros(())
        for batch in passes:
            scores = model(batch[:, :-1])
            loss = F.cross_entropy(scores.reshape(-1, WORDS), batch[:, 1:].reshape(-1))
            (loss / args.passes).backward()
            total += loss.detach() / args.passes
        dense.step()
        sparse.step()
        if (step + 1) % 10 == 0:
            mean = hvd.allreduce(total, name="loss").item()
            if hvd.rank() == 0:
                print(f"step {step + 1}: perplexity {math.exp(mean):.1f}", flush=True)


if __name__ == "__main__":
    main()
