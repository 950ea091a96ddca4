"""The work of `benchmarks.train` by two other libraries: python -m benchmarks.peers --peer=torch --size=base

Needs PyTorch, and transformers for Marian, in the Python that runs it, which may be one without JAX. Prints
one JSON line with the same fields.
"""

import argparse
import json
import statistics
import time

import numpy as np
import torch

SIZES = {  # layers, features, heads, feed-forward features, vocabulary, rows; as in benchmarks.sizes
    "small": (3, 256, 4, 1024, 8_000, 32),
    "base": (6, 512, 8, 2048, 37_000, 16),
    "big": (6, 1024, 16, 4096, 37_000, 16),
}
LENGTH, DROPOUT, SMOOTHING, FIRST_WORD, BOS, PAD = 32, 0.1, 0.1, 10, 1, 0


class PlainTransformer(torch.nn.Module):
    """torch.nn.Transformer with one embedding matrix for source, target and logits, and learned positions."""

    def __init__(self, layers, features, heads, inner, vocabulary, length):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, features)
        torch.nn.init.normal_(self.embedding.weight, std=features**-0.5)
        self.positions = torch.nn.Parameter(0.02 * torch.randn(length, features))
        self.dropout = torch.nn.Dropout(DROPOUT)
        self.transformer = torch.nn.Transformer(
            features, heads, layers, layers, inner, DROPOUT, batch_first=True
        )
        self.scale = features**0.5

    def forward(self, inputs, targets):
        """ids [B, M] and [B, L] -> logits [B, L, V]."""
        source, target = (
            self.dropout(self.embedding(ids) * self.scale + self.positions[: ids.shape[1]])
            for ids in (inputs, targets)
        )
        mask = torch.nn.Transformer.generate_square_subsequent_mask(targets.shape[1], device=inputs.device)
        features = self.transformer(source, target, tgt_mask=mask, tgt_is_causal=True)
        return torch.nn.functional.linear(features, self.embedding.weight)


def marian(layers, features, heads, inner, vocabulary, length):
    """Hugging Face's MarianMT of the same size, as a function of (inputs, targets) like the other."""
    import transformers

    config = transformers.MarianConfig(
        vocab_size=vocabulary,
        d_model=features,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=inner,
        decoder_ffn_dim=inner,
        dropout=DROPOUT,
        attention_dropout=DROPOUT,
        activation_dropout=DROPOUT,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=length,
        pad_token_id=PAD,
        eos_token_id=2,
        decoder_start_token_id=BOS,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
    )

    class Marian(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = transformers.MarianMTModel(config)

        def forward(self, inputs, targets):
            return self.model(input_ids=inputs, decoder_input_ids=targets, use_cache=False).logits

    return Marian()


def main():
    arguments = parse()
    layers, features, heads, inner, vocabulary, rows = SIZES[arguments.size]
    rows, length = arguments.rows or rows, arguments.length
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    build = {"torch": PlainTransformer, "marian": marian}[arguments.peer]
    model = build(layers, features, heads, inner, vocabulary, length).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    rng = np.random.default_rng(0)
    batches = torch.from_numpy(rng.integers(FIRST_WORD, vocabulary, (8, 2, rows, length))).to(device)

    def compute_loss(inputs, shifted, targets):
        with torch.autocast(device, torch.bfloat16, enabled=arguments.dtype == "bfloat16"):
            logits = model(inputs, shifted)
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten(), label_smoothing=SMOOTHING
        )

    if arguments.compile:  # the loss, too, which otherwise takes a good part of the time on a GPU
        compute_loss = torch.compile(compute_loss)
    if device == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32, as JAX's default

    def step(turn):
        inputs, targets = batches[turn % len(batches)]
        shifted = torch.nn.functional.pad(targets, (1, 0), value=BOS)[:, :-1]
        loss = compute_loss(inputs, shifted, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return loss

    first, seconds = timed(step, arguments.steps)
    print(
        json.dumps(
            {
                "peer": arguments.peer + (" compiled" if arguments.compile else ""),
                "size": arguments.size,
                "dtype": arguments.dtype,
                "device": torch.cuda.get_device_name() if device == "cuda" else device,
                "batch": [rows, length],
                "parameters": sum(p.numel() for p in model.parameters()),
                "tokens_per_second": round(2 * rows * length / seconds),
                "milliseconds": round(1000 * seconds, 2),
                "first_call_seconds": round(first, 2),
                "peak_memory_mb": torch.cuda.max_memory_allocated() >> 20 if device == "cuda" else None,
                "loss": round(float(step(0).detach()), 4),
            }
        )
    )


def timed(step, steps):
    """(seconds of the first step, median seconds of `steps` further ones)."""
    seconds = []
    for turn in range(steps + 1):
        began = time.perf_counter()
        step(turn)
        seconds.append(time.perf_counter() - began)
    return seconds[0], statistics.median(seconds[1:])


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", choices=("torch", "marian"), default="torch")
    parser.add_argument("--size", choices=list(SIZES), default="small")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--compile", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
