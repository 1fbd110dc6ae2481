"""A TLS connection over a socket pair within the process. The peer is a thread. In each child, the connection continues
with the child's own copy of the peer.

The key exchange is anonymous, so that no certificate is needed.
"""

import os
import socket
import ssl
import threading
import time

PAYLOAD = "/run/farfork/payload"
CIPHERS = "AECDH-AES256-SHA:@SECLEVEL=0"


def context(side: int) -> ssl.SSLContext:
    made = ssl.SSLContext(side)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    made.maximum_version = ssl.TLSVersion.TLSv1_2
    made.set_ciphers(CIPHERS)
    return made


def serve(end: socket.socket) -> None:
    with context(ssl.PROTOCOL_TLS_SERVER).wrap_socket(end, server_side=True) as session:
        while said := session.recv(100):
            session.sendall(said)


ours, theirs = socket.socketpair()
threading.Thread(target=serve, args=(theirs,), daemon=True).start()
session = context(ssl.PROTOCOL_TLS_CLIENT).wrap_socket(ours)
print("ready", os.getpid(), 0, flush=True)
while True:
    session.sendall(b"hello")
    assert session.recv(100) == b"hello"
    print("tick", time.monotonic_ns() // 1000, flush=True)
    if os.path.exists(PAYLOAD):
        with open(PAYLOAD, encoding="ascii") as payload:
            number = int(payload.read())
        print("result", number, number, flush=True)
        os._exit(42)
    time.sleep(0.002)
