"""Measure a running server with 20 requests, for `kvsim calibrate`. Standard library only; run it anywhere near the
server.

    python kvsim_probe.py http://127.0.0.1:30000 --model NAME > probe.json
    kvsim calibrate SCENARIO probe.json -o overlay.yaml

It speaks the OpenAI completions interface (SGLang, vLLM) with token ids as prompts, streams, and takes the clock at
every chunk. Run it while nobody else uses the server: a queue would be measured as compute. Prompts are random, hence
cold, except where a cached prefix is measured: there the same prompt is sent again with new tokens behind it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
import urllib.error
import urllib.request

PREFILLS = ((512, 0), (2048, 0), (8192, 0), (32768, 0), (2048, 32768), (8192, 32768))
DECODES = ((1, 1024), (1, 32768), (4, 4096), (8, 2048))
OUTPUT_TOKENS = 129


class Stream(threading.Thread):
    """One streamed request: when it was sent, when each chunk came, how many tokens the server says it made."""

    def __init__(self, url: str, model: str, prompt: list[int], output_tokens: int, timeout: float) -> None:
        super().__init__(daemon=True)
        self.request = urllib.request.Request(url.rstrip("/") + "/v1/completions", headers={"Content-Type": "application/json"})
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        self.request.data = json.dumps(body).encode()
        self.output_tokens, self.timeout = output_tokens, timeout
        self.sent = 0.0
        self.chunks: list[float] = []
        self.error = ""

    def run(self) -> None:
        """Send the request and take the time of every chunk."""
        self.sent = time.perf_counter()
        try:
            with urllib.request.urlopen(self.request, timeout=self.timeout) as answer:
                for line in answer:
                    if line.startswith(b"data:") and b"[DONE]" not in line:
                        self.chunks.append(time.perf_counter())
        except (OSError, ValueError) as error:
            self.error = str(error)
        if not self.chunks and not self.error:
            self.error = "the server sent no token"


def send_all(streams: list[Stream]) -> str:
    """Run streams side by side; return the first error, or an empty string."""
    for stream in streams:
        stream.start()
    for stream in streams:
        stream.join()
    return next((stream.error for stream in streams if stream.error), "")


def decode_step(streams: list[Stream], prompt_tokens: int) -> dict[str, float]:
    """Return seconds per step and summed context while all streams were decoding; a chunk counts as its share of the
    tokens."""
    start, end = max(s.chunks[0] for s in streams), min(s.chunks[-1] for s in streams)
    made = done = 0.0
    for stream in streams:
        per_chunk = stream.output_tokens / len(stream.chunks)
        made += per_chunk * sum(start < at <= end for at in stream.chunks)
        done += per_chunk * sum(at <= start for at in stream.chunks)
    if made <= 0:
        raise ValueError("the streams did not decode at the same time")
    return {
        "seconds": (end - start) * len(streams) / made,
        "sum_context": round(len(streams) * prompt_tokens + done + made / 2),
    }


class Probe:
    """The measurements of one server."""

    def __init__(self, url: str, model: str, vocab: int, seed: int, timeout: float) -> None:
        self.url, self.model, self.vocab, self.timeout = url, model, vocab, timeout
        self.random = random.Random(seed)
        self.prefixes: dict[int, list[int]] = {}
        self.measurements: list[dict[str, object]] = []

    def prompt(self, tokens: int) -> list[int]:
        """Return a random prompt of token ids that no one sent before."""
        return [self.random.randrange(100, self.vocab) for _ in range(tokens)]

    def stream(self, prompt: list[int], output_tokens: int) -> Stream:
        """Return a request that is not sent yet."""
        return Stream(self.url, self.model, prompt, output_tokens, self.timeout)

    def prefill(self, new: int, cached: int) -> None:
        """Measure the time to first token of ``new`` tokens after ``cached`` ones that were sent before."""
        prompt = (self.prefixes.setdefault(cached, self.prompt(cached)) if cached else []) + self.prompt(new)
        if not cached:
            self.prefixes[new] = prompt
        stream = self.stream(prompt, 1)
        error = send_all([stream])
        seconds = None if error else stream.chunks[0] - stream.sent
        self.measurements.append({"kind": "prefill", "new_tokens": new, "cached_tokens": cached, "seconds": seconds, "error": error})

    def decode(self, batch: int, context: int) -> None:
        """Measure the decode step of ``batch`` sequences with prompts of ``context`` tokens."""
        streams = [self.stream(self.prompt(context), OUTPUT_TOKENS) for _ in range(batch)]
        row: dict[str, object] = {
            "kind": "decode",
            "batch": batch,
            "sum_context": batch * context,
            "seconds": None,
            "error": send_all(streams),
        }
        if not row["error"]:
            try:
                row.update(decode_step(streams, context))
            except ValueError as error:
                row["error"] = str(error)
        self.measurements.append(row)

    def run(self) -> dict[str, object]:
        """Measure everything, small things first; a request that fails is reported and the rest goes on."""
        self.stream_warm_up()
        for new, cached in PREFILLS:
            self.prefill(new, cached)
        for batch, context in DECODES:
            self.decode(batch, context)
        return {"kvsim_probe": 1, "url": self.url, "model": self.model, "measurements": self.measurements}

    def stream_warm_up(self) -> None:
        """Send one short request so that nothing is measured cold; raise SystemExit if the server does not answer."""
        stream = self.stream(self.prompt(64), 4)
        error = send_all([stream])
        if error:
            raise SystemExit(f"kvsim_probe: {self.url} does not answer: {error}")


def main(argv: list[str] | None = None) -> int:
    """Run the probe and write its result as JSON on stdout."""
    parser = argparse.ArgumentParser(description="Measure a server for `kvsim calibrate`.")
    parser.add_argument("url", help="e.g. http://127.0.0.1:30000")
    parser.add_argument("--model", default="default", help="the model's name as the server knows it")
    parser.add_argument("--vocab", type=int, default=100_000, help="token ids are drawn below this")
    parser.add_argument("--seed", type=int, default=None, help="of the random prompts (default: new ones in every run)")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds per request")
    args = parser.parse_args(argv)
    seed = args.seed if args.seed is not None else random.SystemRandom().getrandbits(64)
    probe = Probe(args.url, args.model, args.vocab, seed, args.timeout)
    json.dump(probe.run(), sys.stdout, indent=1)
    sys.stdout.write("\n")
    failed = sum(1 for row in probe.measurements if row["error"])
    sys.stderr.write(f"kvsim_probe: {len(probe.measurements)} measurements, {failed} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
