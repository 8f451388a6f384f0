#!/usr/bin/env python3
"""Puts load on a server with OpenAI's API and measures throughput and latencies of concurrent streams.

Works with any server whose /v1/completions streams, accepts token ids as the prompt and supports
`ignore_eos`; needs only Python. Every request has a different prompt (random ids from a
seed), so that no server can answer from a stored prefix.

    tools/serve_load.py http://127.0.0.1:8080 --streams 1,8,64,256
    tools/serve_load.py http://127.0.0.1:8080 --streams 8 --long-prompt 31000 --long-prompts 4

    tools/serve_load.py http://127.0.0.1:8080 --streams 4 --beside 4 --beside-body '{"guided_json": {"type": "object"}}'

With --long-prompt, only gaps between tokens while such prompts, sent at the same time, are processed are reported, and the tokens
of the streams meanwhile. With --steady, only those
while all streams decode: from the last first token to the first end, what a benchmark of decode steps measures. With
--beside, further clients send requests with other fields until the streams have ended, and are not reported.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time
import urllib.parse


class Refused(Exception):
    """An answer that is not a stream."""


class Load:
    def __init__(self, options):
        self.options = options
        address = urllib.parse.urlsplit(options.url)
        self.host, self.port = address.hostname, address.port or 80
        self.path = address.path.rstrip("/") + "/v1/completions"
        self.random = random.Random(options.seed)

    def request(self, prompt_tokens, max_tokens, fields):
        low, high = self.options.ids
        body = {"prompt": [self.random.randrange(low, high) for _ in range(prompt_tokens)],
                "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}, **fields}
        data = json.dumps(body).encode()
        head = (f"POST {self.path} HTTP/1.1\r\nHost: {self.host}\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n")
        if self.options.key:
            head += f"Authorization: Bearer {self.options.key}\r\n"
        return head.encode() + b"\r\n" + data

    async def chunks(self, reader):
        """Pieces of the answer's body as they arrive."""
        status = await reader.readline()
        headers = {}
        while (line := (await reader.readline()).strip()):
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip().lower()
        if b" 200 " not in status:
            raise Refused((status + await reader.read(300)).decode(errors="replace"))
        if headers.get("transfer-encoding") != "chunked":
            while piece := await reader.read(65536):
                yield piece
            return
        while size := int((await reader.readline()).split(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]

    async def stream(self, data):
        """One request: the times of its events with tokens, and the number of tokens in its usage."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        start, times, tokens, rest = time.perf_counter(), [], 0, b""
        try:
            writer.write(data)
            await writer.drain()
            async for piece in self.chunks(reader):
                now = time.perf_counter()
                rest += piece
                *events, rest = rest.split(b"\n\n")
                for event in events:
                    if not event.startswith(b"data: {"):
                        continue
                    parsed = json.loads(event[6:])
                    if "error" in parsed:
                        raise Refused(json.dumps(parsed["error"]))
                    if parsed.get("usage"):
                        tokens = parsed["usage"]["completion_tokens"]
                    if parsed.get("choices") and parsed["choices"][0].get("finish_reason") is None:
                        times.append(now)
        finally:
            writer.close()
        return start, times, tokens

    async def run(self, streams):
        """`streams` clients, each sending its requests one after another."""
        options = self.options
        results, failures = [], []

        async def client():
            for _ in range(options.requests):
                try:
                    data = self.request(options.prompt, options.tokens, options.body)
                    results.append(await self.stream(data))
                except (Refused, OSError, asyncio.IncompleteReadError, ValueError) as error:
                    failures.append(error)

        async def long_prompt():
            # When the streams are decoding.
            await asyncio.sleep(options.long_after)
            requests = [self.request(options.long_prompt, 2, options.body) for _ in range(options.long_prompts)]
            answers = await asyncio.gather(*(self.stream(request) for request in requests))
            return [(start, times[0] if times else start) for start, times, _ in answers]

        async def beside():
            while True:
                await self.stream(self.request(options.prompt, options.tokens, options.beside_body))

        others = [asyncio.create_task(beside()) for _ in range(options.beside)]
        begin, cpu = time.perf_counter(), self.cpu_seconds()
        clients = [asyncio.create_task(client()) for _ in range(streams)]
        prompts = await long_prompt() if options.long_prompt else []
        period = (min(start for start, _ in prompts), max(end for _, end in prompts)) if prompts else None
        await asyncio.gather(*clients)
        wall = time.perf_counter() - begin
        if options.steady and not failures:
            period = (max(times[0] for _, times, _ in results),
                      min(times[-1] for _, times, _ in results))
        for other in others:
            if other.done():  # it was refused
                other.result()
            other.cancel()
        row = self.report(options, streams, results, failures, wall, period)
        if prompts:
            row["long_prompt_seconds"] = sorted(round(end - start, 3) for start, end in prompts)
        if options.pid:
            row["cpu_ms_per_token"] = (self.cpu_seconds() - cpu) * 1e3 / \
                max(1, sum(tokens for _, _, tokens in results))
        return row

    def cpu_seconds(self):
        """Processor time of the server, which other programs on the machine hardly affect."""
        if not self.options.pid:
            return 0.0
        fields = open(f"/proc/{self.options.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def report(options, streams, results, failures, wall, period):
        first = sorted(times[0] - start for start, times, _ in results if times)
        gaps = sorted(b - a for _, times, _ in results for a, b in zip(times, times[1:])
                      if period is None or period[0] <= a and b <= period[1])

        def at(values, share):
            return values[min(int(share * len(values)), len(values) - 1)] * 1e3 if values else 0.0

        row = {"streams": streams, "answers": len(results), "failed": len(failures),
               "tokens_per_second": sum(tokens for _, _, tokens in results) / wall,
               "first_ms_p50": at(first, 0.5), "first_ms_p99": at(first, 0.99),
               "gap_ms_p50": at(gaps, 0.5), "gap_ms_p99": at(gaps, 0.99),
               "gap_ms_max": at(gaps, 1.0)}
        if period is not None:
            row["tokens_per_second"] = len(gaps) / max(period[1] - period[0], 1e-9)
        if failures:
            row["first_failure"] = str(failures[0])[:300]
        return row


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="http://HOST:PORT, of this machine")
    parser.add_argument("--streams", default="1,8,64,256", help="clients at once [%(default)s]")
    parser.add_argument("--requests", type=int, default=2, help="of each client [%(default)s]")
    parser.add_argument("--prompt", type=int, default=128, help="tokens [%(default)s]")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer [%(default)s]")
    parser.add_argument("--long-prompt", type=int, default=0,
                        help="tokens of more prompts, sent while the streams run [none]")
    parser.add_argument("--long-prompts", type=int, default=1, help="how many [%(default)s]")
    parser.add_argument("--long-after", type=float, default=2.0,
                        help="seconds until then [%(default)s]")
    parser.add_argument("--steady", action="store_true",
                        help="report only the time in which all streams decode; needs --requests 1")
    parser.add_argument("--beside", type=int, default=0, help="more clients, with --beside-body [%(default)s]")
    parser.add_argument("--beside-body", default="{}", help="more fields of their requests, JSON")
    parser.add_argument("--ids", default="300,4000", help="token ids of prompts [%(default)s)")
    parser.add_argument("--pid", type=int, default=0,
                        help="of the server: its processor time by token [none]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--key", default="", help="API key")
    parser.add_argument("--body", default="{}", help="more fields of each request, JSON")
    parser.add_argument("--json", action="store_true", help="one object a line instead of a table")
    options = parser.parse_args()
    options.ids = tuple(int(value) for value in options.ids.split(","))
    if options.steady and (options.requests != 1 or options.long_prompt):
        parser.error("--steady needs --requests 1 and no --long-prompt")
    options.body = json.loads(options.body)
    options.beside_body = json.loads(options.beside_body)
    return options


def main():
    options = parse()
    failed = False
    if not options.json:
        print("| streams | tok/s | first token p50 / p99 (ms) | between tokens p50 / p99 / max (ms) "
              "| CPU ms a token | failed |\n| --- | --- | --- | --- | --- | --- |")
    for streams in (int(value) for value in options.streams.split(",")):
        row = asyncio.run(Load(options).run(streams))
        failed = failed or row["failed"] > 0
        if options.json:
            print(json.dumps(row), flush=True)
            continue
        print("| {streams} | {tokens_per_second:.0f} | {first_ms_p50:.0f} / {first_ms_p99:.0f} "
              "| {gap_ms_p50:.1f} / {gap_ms_p99:.1f} / {gap_ms_max:.1f} | {cpu_ms_per_token:.2f} | {failed} |".format(**{"cpu_ms_per_token": 0, **row}),
              flush=True)
        for name in ("long_prompt_seconds", "first_failure"):
            if name in row:
                print(f"{name}: {row[name]}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
