"""What ruedarun calls to start an agent on a node of Ray: hands the command to the executor, and waits.

    python _shell.py SOCKET HOST PROGRAM ARGUMENTS...

SOCKET belongs to `rueda.ray._agents`, which starts the program in an actor on that node. Run by its path, with
the standard library alone: one line of JSON goes there, and one comes back when the program has ended.
"""

import base64
import json
import socket
import sys


def main():
    path, host, *command = sys.argv[1:]
    request = {
        "host": host,
        "command": command,
        "input": base64.b64encode(sys.stdin.buffer.read()).decode(),
    }
    with socket.socket(socket.AF_UNIX) as door:
        try:
            door.connect(path)
            door.sendall(json.dumps(request).encode() + b"\n")
            with door.makefile("rb") as answers:
                line = answers.readline()
        except OSError as error:
            sys.exit(f"the executor that starts agents on Ray's nodes is not there: {error}")
    if not line:
        sys.exit("the executor that starts agents on Ray's nodes has ended")
    answer = json.loads(line)
    sys.stdout.write(answer["output"])
    sys.exit(answer["code"])


if __name__ == "__main__":
    main()
