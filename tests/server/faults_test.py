"""The program with many misbehaving clients at once; killed in mid-stream; with a full disk.

usage: faults_test.py PROGRAM MODEL_DIRECTORY

Needs only Python. The seed is printed; LC_TEST_SEED repeats it.
"""

import collections
import http.client
import json
import os
import pathlib
import queue
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.parse

import program

SEED = int(os.environ.get("LC_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
PROMPT = "def add(a, b):\n    return"


class Guest:
    """One connection, and ways to misuse it."""

    def __init__(self, url, chance, receive_buffer=0):
        address = urllib.parse.urlsplit(url)
        self.random = chance
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(program.PATIENCE)
        self.socket.connect((address.hostname, address.port))

    def send(self, data):
        self.socket.sendall(data)

    def request(self, body):
        data = json.dumps(body).encode()
        return (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data)) + data

    def read_all(self):
        """Reads until the server closes; "" if it resets the connection."""
        data = b""
        try:
            while piece := self.socket.recv(65536):
                data += piece
        except ConnectionError:
            pass
        return data

    def leave(self):
        if self.random.random() < 0.5:  # with a reset
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class Storm(unittest.TestCase):
    """Misbehaving clients must leave nothing behind."""

    IDLE = 1.5

    def connect(self, **options):
        return Guest(self.server.url, self.local.random, **options)

    def come_and_go(self):
        self.connect().leave()

    def half_a_request(self):
        guest = self.connect()
        whole = guest.request({"prompt": PROMPT, "max_tokens": 3})
        guest.send(whole[:self.local.random.randrange(1, len(whole))])
        if self.local.random.random() < 0.2:
            self.assertIn(b" 408 ", guest.read_all())
        guest.leave()

    def garbage(self):
        guest = self.connect()
        data = self.local.random.randbytes(self.local.random.randrange(1, 5000))
        if self.local.random.random() < 0.5:
            data = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + data
        try:
            guest.send(data)
            guest.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        answer = guest.read_all()
        self.assertTrue(not answer or answer.startswith(b"HTTP/1.1 4"), answer[:80])
        guest.leave()

    def huge_body(self):
        guest = self.connect()
        try:
            guest.send(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                       b"Content-Type: application/json\r\nContent-Length: 2000000000\r\n\r\n")
            for _ in range(50):
                guest.send(b"x" * 100000)
        except OSError:
            pass
        guest.leave()

    def nested_json(self):
        guest = self.connect()
        body = b"[" * 500000
        try:
            guest.send(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                       b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body))
            guest.send(body)
        except OSError:
            pass
        status = guest.read_all()[9:12]
        self.assertIn(status, (b"400", b"429"))  # the queue may be full
        guest.leave()

    def leave_a_stream(self):
        guest = self.connect()
        guest.send(guest.request({"prompt": PROMPT, "max_tokens": 20000, "ignore_eos": True,
                                  "stream": True}))
        for _ in range(self.local.random.randrange(5)):
            guest.socket.recv(1000)
        guest.leave()

    def leave_an_answer(self):
        guest = self.connect()
        guest.send(guest.request({"prompt": PROMPT, "max_tokens": 20000, "ignore_eos": True}))
        time.sleep(self.local.random.random() * 0.1)
        guest.leave()

    def leave_a_prefill(self):
        guest = self.connect()
        ids = [self.local.random.randrange(300, 4000) for _ in range(20000)]
        guest.send(guest.request({"prompt": ids, "max_tokens": 3,
                                  "stream": self.local.random.random() < 0.5}))
        time.sleep(self.local.random.random() * 0.3)
        guest.leave()

    def never_read(self):
        if len(self.held) >= 6:  # their answers are long and slow
            return
        guest = self.connect(receive_buffer=2048)
        guest.send(guest.request({"prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True,
                                  "stream": True, "logprobs": 20}))
        self.held.append(guest)

    def behave(self):
        try:
            text = self.server.call("/v1/completions", {"prompt": PROMPT, "max_tokens": 12,
                                                        "temperature": 0})["choices"][0]["text"]
            self.answers[text] += 1
        except urllib.error.HTTPError as error:
            with error:
                self.assertIn(error.code, (429, 503))
            self.refused += 1

    def guests(self, number):
        """One of the threads that start clients until the time is over."""
        self.local.random = random.Random(SEED + number)
        kinds = [self.come_and_go, self.half_a_request, self.garbage, self.huge_body,
                 self.nested_json, self.leave_a_stream, self.leave_an_answer, self.leave_a_prefill,
                 self.never_read, self.behave, self.behave]
        try:
            while time.time() < self.end:
                kind = self.local.random.choice(kinds)
                kind()
                self.seen[kind.__name__] += 1
        except Exception as error:  # reported where unittest sees it
            self.errors.append((kind.__name__, repr(error)))

    def left(self):
        """Threads and open files of the server, and the requests in progress by its own counters."""
        process = pathlib.Path("/proc") / str(self.server.process.pid)
        samples = self.server.samples()
        counted = {name: samples["litecache_" + name] for name in
                   ("requests_running", "requests_waiting", "sequences_running",
                    "http_connections", "http_requests_open")}
        for tier in ("device", "host"):
            label = f'{{tier="{tier}"}}'
            counted[tier + " bytes"] = (samples["litecache_kv_used_bytes" + label]
                                        - samples["litecache_prefix_bytes" + label])
        return {**counted, "threads": len(list((process / "task").iterdir())),
                "files": len(list((process / "fd").iterdir()))}

    def test_nothing_is_left(self):
        print("seed", SEED)
        self.server = program.Server("--max-queue", "8", "--max-batch", "4", "--max-body", "1MiB",
                                     "--idle-timeout", str(self.IDLE))
        self.addCleanup(lambda: self.assertEqual(self.server.stop(), 0))
        self.held, self.errors, self.local = [], [], threading.local()
        self.seen, self.answers, self.refused = collections.Counter(), collections.Counter(), 0
        self.behave()
        before = self.left()
        self.end = time.time() + 8
        threads = [threading.Thread(target=self.guests, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.errors, [])
        # The server closes clients that never read, however long it takes to fill their buffers.
        for guest in self.held[::2]:
            guest.leave()
        deadline = time.time() + program.PATIENCE
        while (after := self.left()) != before and time.time() < deadline:
            time.sleep(0.1)
        self.assertEqual(after, before)
        for guest in self.held[1::2]:
            guest.leave()
        self.behave()
        print(dict(self.seen), self.refused, "refused")
        self.assertEqual(len(self.answers), 1, self.answers)  # always the same text
        self.assertGreater(sum(self.answers.values()), 1)


class Kill(unittest.TestCase):
    """SIGKILL while answers stream and kept prefixes are written."""

    BODY = {"prompt": PROMPT * 100, "max_tokens": 200, "temperature": 0, "ignore_eos": True}

    def test_a_store_survives(self):
        chance = random.Random(SEED)
        with tempfile.TemporaryDirectory() as folder:
            flags = ["--prefix-store", folder]
            server = program.Server(*flags)
            text = server.call("/v1/completions", self.BODY)["choices"][0]["text"]
            cut = 0
            for _ in range(3):
                results, lines = [], queue.SimpleQueue()
                threads = [threading.Thread(target=self.stream, args=(server, i, results, lines))
                           for i in range(4)]
                for thread in threads:
                    thread.start()
                # Counted in lines of the answers: four answers of 200 tokens have more than these, however fast the machine is.
                for _ in range(chance.randrange(500)):
                    lines.get(timeout=program.PATIENCE)
                self.assertEqual(server.stop(signal.SIGKILL), -signal.SIGKILL)
                for thread in threads:
                    thread.join()
                cut += results.count(False)
                server = program.Server(*flags)
                self.assertEqual(list(pathlib.Path(folder).glob("??/*.tmp")), [])
                self.assertEqual(server.call("/v1/completions", self.BODY)["choices"][0]["text"],
                                 text)
                self.assertEqual(server.samples()["litecache_prefix_store_damaged_total"], 0)
            self.assertEqual(server.stop(), 0)
            self.assertGreater(cut, 0)

    def stream(self, server, number, results, lines):
        """Puts every line of an answer into `lines`, and records in `results` whether it was complete."""
        done = False
        try:
            body = {**self.BODY, "prompt": f"# {number}\n" + self.BODY["prompt"], "stream": True}
            with server.open("/v1/completions", body) as answer:
                for line in answer:
                    done = done or line == b"data: [DONE]\n"
                    if line.strip():
                        lines.put(line)
        except (OSError, http.client.HTTPException):
            pass
        results.append(done)


class FullDisk(unittest.TestCase):
    def test_what_does_not_fit_is_a_warning(self):
        # A file system of 2 MiB, only for the server: it holds two blocks of this model, but not three.
        private = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "-Urm"]
        with tempfile.TemporaryDirectory() as folder:
            before = [*private, "sh", "-c", 'mount -t tmpfs -o size=2m,mode=700 none "$0" && exec "$@"', folder]
            try:
                subprocess.run([*before, "true"], check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError):
                self.skipTest("no file system can be mounted here")
            server = program.Server("--prefix-store", folder, before=before)
            body = {"prompt": [400 + i % 3000 for i in range(1500)], "max_tokens": 8,
                    "temperature": 0}
            first = server.call("/v1/completions", body)
            deadline = time.time() + program.PATIENCE
            while server.samples()["litecache_prefix_store_writing"] == 1:
                self.assertLess(time.time(), deadline)
                time.sleep(0.02)
            again = server.call("/v1/completions", body)
            self.assertEqual(again["choices"], first["choices"])
            self.assertEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], 1488)
            inside = pathlib.Path(f"/proc/{server.process.pid}/root{folder}")
            blocks = [path.name for path in inside.glob("??/*")]
            self.assertEqual(len(blocks), server.samples()["litecache_prefix_store_blocks"])
            self.assertTrue(all(name.endswith(".kv") for name in blocks), blocks)
            self.assertEqual(server.stop(), 0)
            self.assertEqual(sum("nothing more is written" in line for line in server.log), 1)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
