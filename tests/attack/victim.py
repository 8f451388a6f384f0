"""A server under attack: shared by the scripts of this folder. All traffic stays on the loopback interface."""

import json
import os
import pathlib
import socket
import sys
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "server"))
import program  # noqa: E402

SCALE = float(os.environ.get("LC_ATTACK_SCALE", "1"))
# Limit on the server's CPU time for one refused request. Sanitizer builds are slower.
CPU_SECONDS = float(os.environ.get("LC_ATTACK_CPU_SECONDS", "2"))


class Victim(program.Server):
    def cpu(self):
        """CPU seconds of all its threads."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self):
        """Bytes of memory."""
        pages = pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def connect(self, timeout=60):
        address = urllib.parse.urlsplit(self.url)
        return socket.create_connection((address.hostname, address.port), timeout=timeout)

    def post(self, path, body, timeout=60):
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


class Attack(unittest.TestCase):
    """One server for all attacks of a class; each must leave it working."""

    FLAGS = ()

    @classmethod
    def setUpClass(cls):
        cls.victim = Victim(*cls.FLAGS)

    @classmethod
    def tearDownClass(cls):
        if cls.victim.process.poll() is None:
            code = cls.victim.stop()
        else:
            code = cls.victim.wait()
        assert code == 0, f"the server ended with {code}: " + "".join(cls.victim.log[-5:])

    def tearDown(self):
        self.assertIsNone(self.victim.process.poll(), "the server has ended")
        self.assertEqual(self.victim.call("/health")["status"], "ok")

    def refuse(self, path, body, part="", statuses=(400,), seconds=CPU_SECONDS):
        """Sends a request that must be refused, within a bounded time of CPU."""
        before = self.victim.cpu()
        status, answer = self.victim.post(path, body)
        self.assertLess(self.victim.cpu() - before, seconds, f"CPU seconds of {path}")
        self.assertIn(status, statuses, str(answer)[:300])
        message = answer["error"]["message"]
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


def wait_for(true, seconds=30):
    deadline = time.time() + seconds
    while not true():
        if time.time() > deadline:
            return False
        time.sleep(0.02)
    return True


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
