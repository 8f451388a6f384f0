"""A server under attack: shared by the scripts of this folder. All traffic stays on the loopback interface.

A script's random attacks repeat as often as `--count` says, from `--seed`, both behind PROGRAM and MODEL_DIRECTORY;
each prints a row of the table in docs/internals/hardening.md. Attempt N of a run is `--first N --count 1` with its seed.
"""

import argparse
import collections
import http.client
import json
import os
import pathlib
import random
import socket
import sys
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "server"))
import program  # noqa: E402

MIB = 1 << 20
# Limit on the server's CPU time for one request. Sanitizer builds are slower.
CPU_SECONDS = float(os.environ.get("LC_ATTACK_CPU_SECONDS", "2"))
# How many times as much memory the program takes as without a sanitizer: ThreadSanitizer keeps a shadow of all of it.
MEMORY_FACTOR = float(os.environ.get("LC_ATTACK_MEMORY_FACTOR", "1"))
# Bytes that a server may hold after many requests more than before them, in allocators of its threads and compiled
# grammars. Up to 165 MiB were measured; it does not grow from there (docs/internals/hardening.md).
KEPT = MEMORY_FACTOR * 256 * MIB


class Victim(program.Server):
    def cpu(self):
        """CPU seconds of all its threads."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self):
        """Bytes of memory."""
        pages = pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def held(self):
        """Bytes of memory without the KV cache, which keeps prefixes as long as nothing else needs its memory."""
        return self.resident() - sum(self.call("/stats")["kv"]["provided"].values())

    def connect(self, timeout=program.PATIENCE):
        address = urllib.parse.urlsplit(self.url)
        return socket.create_connection((address.hostname, address.port), timeout=timeout)

    def post(self, path, body, timeout=60 + 10 * CPU_SECONDS):
        """Status and JSON of the answer; `body` is bytes, or a value to be written as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data,
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


def request_bytes(path, body, *headers, length=True):
    """The bytes of a request."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
             *headers, *([f"Content-Length: {len(body)}"] if length else [])]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Tally:
    """What came of the attempts of one kind, as a row of a table."""

    def __init__(self, kind):
        self.kind = kind
        self.seconds = 0
        self.outcomes = collections.Counter()

    def attempts(self, usual):
        """Each attempt's number and random numbers."""
        count = OPTIONS.count or usual
        print(f"{self.kind}: {count} attempts, --seed {OPTIONS.seed}", flush=True)
        for number in range(OPTIONS.first, OPTIONS.first + count):
            self.number = number
            yield random.Random(f"{OPTIONS.seed} {self.kind} {number}")

    def add(self, outcome, seconds):
        self.outcomes[outcome] += 1
        self.seconds = max(self.seconds, seconds)

    def print(self, memory):
        outcomes = ", ".join(f"{number:,} {outcome}" for outcome, number in sorted(
            self.outcomes.items(), key=lambda item: -item[1]))
        print(f"| {self.kind} | {sum(self.outcomes.values()):,} | {outcomes} | {self.seconds:.2f} s | "
              f"{memory} |", flush=True)


class Attack(unittest.TestCase):
    """One server for all attacks of a class; each must leave it working."""

    FLAGS = ()
    MODEL = program.MODEL

    @classmethod
    def setUpClass(cls):
        cls.victim = Victim(*cls.FLAGS, model=cls.MODEL)

    @classmethod
    def tearDownClass(cls):
        if cls.victim.process.poll() is None:
            code = cls.victim.stop()
        else:
            code = cls.victim.wait()
        assert code == 0, f"the server ended with {code}: " + "".join(cls.victim.log[-5:])

    def tearDown(self):
        if self.connection is not None:
            self.connection.close()
        self.assertIsNone(self.victim.process.poll(), "the server has ended")
        self.assertEqual(self.victim.call("/health")["status"], "ok")

    def refuse(self, path, body, part="", statuses=(400,), seconds=CPU_SECONDS):
        """Sends a request that must be refused, within a bounded time of CPU."""
        before = self.victim.cpu()
        status, answer = self.victim.post(path, body)
        self.assertLess(self.victim.cpu() - before, seconds, f"CPU seconds of {path}")
        self.assertIn(status, statuses, str(answer)[:300])
        message = answer["error"]["message"]
        # The server's own limit, 10 s, may come first where everything is slow.
        if CPU_SECONDS <= 10 or "takes more than 10 s of CPU time" not in message:
            self.assertIn(part, message)
        self.assertLess(len(message), 2000, "the error repeats what was sent")
        return message

    def bounded(self, path, body, seconds=CPU_SECONDS):
        """Sends a request that may be answered or refused, within a bounded time of CPU."""
        before = self.victim.cpu()
        status, answer = self.victim.post(path, body)
        self.assertLess(self.victim.cpu() - before, seconds, f"CPU seconds of {path}")
        self.assertLess(status, 500, str(answer)[:300])
        return status, answer


    def send(self, path, body):
        """The status of the answer to bytes; the connection is kept for the next ones."""
        for again in (False, True):
            if self.connection is None:
                address = urllib.parse.urlsplit(self.victim.url)
                self.connection = http.client.HTTPConnection(address.hostname, address.port, timeout=program.PATIENCE)
            try:
                self.connection.request("POST", path, body, {"Content-Type": "application/json"})
                answer = self.connection.getresponse()
                answer.read()
                return answer.status
            except (http.client.RemoteDisconnected, ConnectionError):  # the server has ended what was kept
                self.connection.close()
                self.connection = None
                if again:
                    raise

    connection = None

    def campaign(self, kind, usual, attempt):
        """Calls `attempt` with random numbers, `usual` times or as often as the command line says. It sends one
        request and returns the answer's status. None may take the server more than CPU_SECONDS, and what they took
        of its memory must be given back."""
        tally = Tally(kind)
        first = self.victim.held()
        try:
            for chance in tally.attempts(usual):
                before = self.victim.cpu()
                outcome = attempt(chance)
                seconds = self.victim.cpu() - before
                self.assertLess(seconds, CPU_SECONDS)
                tally.add(outcome, seconds)
                # 505: a version of HTTP that the server does not speak.
                self.assertTrue(isinstance(outcome, str) or outcome < 500 or outcome == 505, outcome)
        except Exception as error:
            raise AssertionError(f"{kind}: --seed {OPTIONS.seed} --first {tally.number} --count 1") from error
        self.victim.wait_idle()
        wait_for(lambda: self.victim.held() - first < KEPT)
        last = self.victim.held()
        tally.print(f"{first / MIB:.0f} MiB, {last / MIB:.0f} MiB after")
        self.assertLess(last - first, KEPT)


def wait_for(true, seconds=program.PATIENCE):
    deadline = time.time() + seconds
    while not true():
        if time.time() > deadline:
            return False
        time.sleep(0.02)
    return True


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=0, help="attempts of each random attack; 0: a few")
    parser.add_argument("--first", type=int, default=0, help="number of the first attempt")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    return parser.parse_known_args(sys.argv[3:])


OPTIONS, OTHERS = options()


def main():
    unittest.main(argv=[sys.argv[0], *OTHERS])
