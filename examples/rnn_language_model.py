"""A language model in two halves: the wide word tables on one worker, the LSTM on another.

The worker "tables" owns the embedding and the decoder, whose size grows with the vocabulary; the
"trainer" owns the LSTM and the loop. Each step crosses the seam four times: words over, vectors
back, LSTM outputs over, logits back, and backward the same way home. The text is the Python
language reference, which comes with every Python (the module `pydoc_data.topics`).

    lockstitch run -n 2 examples/rnn_language_model.py [steps]
"""

import math
import os
import re
import sys
from collections import Counter
from pydoc_data.topics import topics

import torch
from torch import nn, optim

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.optim import DistributedOptimizer

VOCABULARY = 1000
WIDTH = 64
COLUMNS = 20  # texts read side by side
SPAN = 20  # words of each text in one step


class WordTables(nn.Module):
    """The remote half: words to vectors before the LSTM, vectors to logits after it."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.decoder = nn.Linear(WIDTH, VOCABULARY)

    def embed(self, words):
        return self.embedding(words)

    def decode(self, vectors):
        return self.decoder(vectors)

    def parameter_rrefs(self):
        return [rpc.RRef(parameter) for parameter in self.parameters()]


class LanguageModel(nn.Module):
    """The local half, with the remote half behind a reference."""

    def __init__(self, tables_worker):
        super().__init__()
        self.tables = rpc.remote(tables_worker, WordTables)
        self.lstm = nn.LSTM(WIDTH, WIDTH)

    def forward(self, words, state=None):
        vectors = self.tables.rpc_sync().embed(words)
        vectors, state = self.lstm(vectors, state)
        return self.tables.rpc_sync().decode(vectors), state

    def parameter_rrefs(self):
        local = [rpc.RRef(parameter) for parameter in self.parameters()]
        return self.tables.rpc_sync().parameter_rrefs() + local


def read_text():
    """The reference as word numbers in columns, and the words behind the numbers."""
    text = " ".join(topics[topic] for topic in sorted(topics)).lower()
    words = re.findall(r"[a-z]+|[.,]", text)
    vocabulary = ["…"] + [word for word, _ in Counter(words).most_common(VOCABULARY - 1)]
    numbers = {word: number for number, word in enumerate(vocabulary)}
    stream = torch.tensor([numbers.get(word, 0) for word in words])
    rows = len(stream) // COLUMNS
    return stream[: rows * COLUMNS].view(COLUMNS, rows).t(), vocabulary


def train(model, text, steps):
    """One step reads SPAN more words; the LSTM's state goes on from step to step."""
    optimizer = DistributedOptimizer(optim.Adam, model.parameter_rrefs(), lr=0.01)
    spans = (len(text) - 1) // SPAN
    state, losses = None, []
    for step in range(steps):
        start = step % spans * SPAN
        words, next_words = text[start : start + SPAN], text[start + 1 : start + SPAN + 1]
        with dist_autograd.context() as context_id:
            logits, state = model(words, state)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), next_words.flatten())
            dist_autograd.backward(context_id, [loss])
            optimizer.step(context_id)
        state = tuple(part.detach() for part in state)
        losses.append(loss.item())
        if (step + 1) % 20 == 0:
            perplexity = math.exp(sum(losses[-20:]) / 20)
            print(f"step {step + 1:4}  perplexity {perplexity:7.1f}", flush=True)


@torch.no_grad()
def write(model, vocabulary, first="the", length=25):
    """What the model would say, word by word."""
    said, state = [first], None
    for _ in range(length):
        word = torch.tensor([[vocabulary.index(said[-1])]])
        logits, state = model(word, state)
        probabilities = (logits.flatten() * 1.5).softmax(0)  # a little bolder than it learned
        probabilities[0] = 0  # any word rather than "some other word"
        said.append(vocabulary[torch.multinomial(probabilities, 1)])
    return " ".join(said)


def main():
    if os.environ.get("WORLD_SIZE") != "2":
        sys.exit("start it so: lockstitch run -n 2 examples/rnn_language_model.py")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    torch.set_num_threads(1)  # several processes share the cores
    torch.manual_seed(rank)

    rpc.init_rpc(["trainer", "tables"][rank], rank=rank, world_size=world_size)
    if rank == 0:
        text, vocabulary = read_text()
        model = LanguageModel("tables")
        train(model, text, steps)
        print("it says:", write(model, vocabulary))
    rpc.shutdown()


if __name__ == "__main__":
    main()
