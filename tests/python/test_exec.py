"""Commands in containers with the official Python client, which opens WebSockets of its own.

Runs against the cluster of $KUBECONFIG, where a pod `app` with one container runs. `crates/tether/tests/pods` starts it.
"""

import json
import unittest

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream

# A command that never ends fails the tests instead of hanging them.
SECONDS = 30


def setUpModule():
    config.load_kube_config()


class Exec(unittest.TestCase):
    def setUp(self):
        self.core = client.CoreV1Api()

    def run_in(self, command, **options):
        options = {"stdin": False, "stdout": True, "stderr": True, "tty": False, **options}
        call = self.core.connect_get_namespaced_pod_exec
        return stream(call, "app", "default", command=command, _preload_content=False, **options)

    def shell(self, script, **options):
        return self.run_in(["sh", "-c", script], **options)

    def test_output_and_exit_code(self):
        running = self.shell("echo out; echo err >&2; exit 3")
        running.run_forever(timeout=SECONDS)
        self.assertEqual((running.read_stdout(), running.read_stderr()), ("out\n", "err\n"))
        self.assertEqual(running.returncode, 3)

    def test_input_is_a_conversation(self):
        running = self.shell("read a; echo got $a; read b; echo and $b", stdin=True)
        running.write_stdin("one\n")
        self.assertEqual(running.readline_stdout(timeout=SECONDS), "got one")
        running.write_stdin("two\n")
        self.assertEqual(running.readline_stdout(timeout=SECONDS), "and two")
        running.run_forever(timeout=SECONDS)
        self.assertEqual(running.returncode, 0)

    def test_terminal_and_its_size(self):
        running = self.shell("until stty size | grep '41 97'; do sleep 0.1; done", stdin=True, tty=True)
        running.write_channel(4, json.dumps({"Width": 97, "Height": 41}))
        self.assertEqual(running.readline_stdout(timeout=SECONDS).strip(), "41 97")
        running.run_forever(timeout=SECONDS)
        self.assertEqual(running.returncode, 0)

    def test_what_cannot_be_run(self):
        running = self.run_in(["/no/such/program"])
        running.run_forever(timeout=SECONDS)
        status = json.loads(running.read_channel(3))
        self.assertEqual((status["status"], status["reason"]), ("Failure", "InternalError"))
        self.assertIn('"/no/such/program": No such file', status["message"])
        with self.assertRaises(ApiException) as caught:
            self.shell("true", container="nope")
        self.assertIn("400", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
