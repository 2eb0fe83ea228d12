"""An encoder like Wav2Vec2, and "speech" made of tones, both generated from a seed.

A letter is a tone; letters of a word are separated by short silences, words by longer ones. The encoder has the shape
of Wav2Vec2: convolutions turn samples into frames, a Transformer looks at all frames of an utterance, and a linear
head says which letter each frame is, if any. It is not trained by gradient descent: the filters of the first layer
are sines, as in trained speech encoders, the other weights are drawn from the seed, and the head is fitted in closed
form (ridge regression) to a few utterances with known frames. So it costs as much as a trained network, and
transcribes well enough for its word errors to mean something.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from tapfinger.reporting import report
from tapfinger.testbed.common import DONE, RunOptions, say
from tapfinger.testbed.ctc import BLANK, decode, word_errors
from tapfinger.testbed.parallel import Workers

ALPHABET = "abcdefghijklmnopqrstuvwxyz "
#: Samples per second, samples between frames, and samples covered by a filter of the first layer.
RATE, HOP, WINDOW = 8000, 80, 200
#: Frames of a tone and of the silence after it.
TONE, GAP = 7, 3
#: Letters of an utterance including spaces, words in the vocabulary, letters of a word, noise.
LETTERS, WORDS, WORD, NOISE = 24, 200, (2, 6), 0.1
#: Number of utterances to transcribe at scale 1, per batch, and to fit the head to.
UTTERANCES, BATCH, FIT = 320, 8, 64
RIDGE = 1.0


class Encoder(nn.Module):
    """Samples in, a vector per frame out."""

    def __init__(self, bands: int = 64, width: int = 128, layers: int = 4, heads: int = 4) -> None:
        """``bands``: number of filter pairs in the first layer."""
        super().__init__()
        self.sines = nn.Conv1d(1, 2 * bands, WINDOW, HOP // 4, padding=WINDOW // 2, bias=False)
        self.sines.weight = nn.Parameter(_sines(bands))
        self.narrow = nn.Conv1d(2 * bands, width, 3, 2, padding=1)
        self.frames = nn.Conv1d(width, width, 3, 2, padding=1)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.context = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(ALPHABET) + 1)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """(utterances, samples) to (utterances, frames, width)."""
        energy = torch.log1p(self.sines(samples[:, None]) ** 2)
        stream = functional.gelu(self.frames(functional.gelu(self.narrow(energy)))).transpose(1, 2)
        return self.context(stream)  # type: ignore[no-any-return]


def _sines(bands: int) -> torch.Tensor:
    """Windowed sines and cosines from the lowest to the highest tone."""
    time = torch.arange(WINDOW) / RATE
    pitch = torch.linspace(200.0, 3700.0, bands)
    angle = 2 * math.pi * pitch[:, None] * time
    both = torch.cat((angle.sin(), angle.cos())) * torch.hann_window(WINDOW)
    return (both / 8.0)[:, None]


def pitches() -> torch.Tensor:
    """The tone of each letter."""
    return torch.linspace(300.0, 3600.0, len(ALPHABET))


@dataclass(frozen=True)
class Speech:
    """Utterances, their texts, and the class of each frame."""

    samples: torch.Tensor
    texts: list[str]
    frames: torch.Tensor


def vocabulary(draw: torch.Generator) -> list[str]:
    """Words of random letters."""
    sizes = torch.randint(WORD[0], WORD[1] + 1, (WORDS,), generator=draw).tolist()
    return ["".join(ALPHABET[i] for i in torch.randint(26, (size,), generator=draw).tolist()) for size in sizes]


def texts(count: int, words: list[str], draw: torch.Generator) -> list[str]:
    """Texts with as many words as fit into an utterance."""
    found = []
    for _ in range(count):
        picks = torch.randint(len(words), (LETTERS,), generator=draw).tolist()
        text = words[picks[0]]
        for pick in picks[1:]:
            if len(text) + 1 + len(words[pick]) > LETTERS:
                break
            text += f" {words[pick]}"
        found.append(text)
    return found


def speak(said: list[str], draw: torch.Generator) -> Speech:
    """Tones of varying loudness and pitch, under noise."""
    kinds = torch.zeros(len(said), LETTERS, dtype=torch.long)
    for row, text in enumerate(said):
        kinds[row, : len(text)] = torch.tensor([ALPHABET.index(letter) + 1 for letter in text])
    step = TONE + GAP
    frames = kinds[:, :, None].expand(-1, -1, step).clone()
    frames[:, :, TONE:] = BLANK
    frames = frames.flatten(1)
    tone = torch.cat((torch.zeros(1), pitches()))[frames] * (1 + 0.001 * torch.randn(len(said), 1, generator=draw))
    loud = (frames != BLANK) * (0.85 + 0.3 * torch.rand(len(said), 1, generator=draw))
    angle = 2 * math.pi * torch.cumsum(tone.repeat_interleave(HOP, 1) / RATE, 1)
    noise = NOISE * torch.randn(len(said), frames.shape[1] * HOP, generator=draw)
    return Speech(angle.sin() * loud.repeat_interleave(HOP, 1) + noise, said, frames)


def fit_head(model: Encoder, speech: Speech) -> None:
    """Fit the head: ridge regression of the frames' classes on the encoder's output."""
    with torch.no_grad():
        found = torch.cat([model(part) for part in torch.split(speech.samples, BATCH)])
        found = found[:, : speech.frames.shape[1]].flatten(0, 1).double()
        mean, wanted = found.mean(0), functional.one_hot(speech.frames.flatten(), len(ALPHABET) + 1).double()
        centred, share = found - mean, wanted.mean(0)
        gram = centred.T @ centred + RIDGE * torch.eye(centred.shape[1], dtype=torch.float64)
        weight = torch.linalg.solve(gram, centred.T @ (wanted - share))
        model.head.weight.copy_(weight.T)
        model.head.bias.copy_(share - mean @ weight)


def transcribe(model: Encoder, samples: torch.Tensor) -> list[str]:
    """Transcribe each utterance."""
    with torch.no_grad():
        best = model.head(model(samples)).argmax(-1)
    return [decode(row, ALPHABET) for row in best.tolist()]


def work(workers: Workers, options: RunOptions) -> int:
    """Transcribe this worker's utterances; the first worker reports progress and the errors of all."""
    torch.manual_seed(options.seed)
    model = Encoder().eval()
    draw = torch.Generator().manual_seed(options.seed)
    words = vocabulary(draw)
    fit_head(model, speak(texts(FIT, words, draw), draw))
    model.to(workers.device)
    count = max(workers.count, round(UTTERANCES * options.scale))
    mine = range(workers.rank, count, workers.count)
    wrong = spoken = 0
    for begin in range(0, len(mine), BATCH):
        numbers = mine[begin : begin + BATCH]
        # Each batch has its own seed, so no worker makes the utterances of others.
        own = torch.Generator().manual_seed(options.seed * 100_003 + numbers[0] + 1)
        speech = speak(texts(len(numbers), words, own), own)
        for said, heard in zip(speech.texts, transcribe(model, speech.samples.to(workers.device)), strict=True):
            errors, length = word_errors(said, heard)
            wrong, spoken = wrong + errors, spoken + length
        if workers.first:
            report(min(0.99, (begin + len(numbers)) / len(mine)), wer=wrong / spoken)
            say(f"{begin + len(numbers)} of {len(mine)}: word error rate {wrong / spoken:.3f}")
    total = workers.add(torch.tensor([wrong, spoken], dtype=torch.float64, device=workers.device))
    if workers.first:
        rate = float(total[0] / total[1])
        report(1.0, wer=rate)
        say(f"{count} utterances, {int(total[1])} words: word error rate {rate:.3f}")
    return DONE
