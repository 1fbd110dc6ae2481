"""Tests that frames between this process and a worker arrive complete and in order, however the bytes arrive."""

import os
import pickle
import socket
import threading
import unittest

from farfork._channel import OUTCOME, PICKLED_CALL, Channel, Payload

from .. import memory_limit


def pair(blocking: bool = True) -> tuple[Channel, Channel]:
    ours, theirs = socket.socketpair()
    return Channel(ours.detach(), blocking), Channel(theirs.detach(), blocking=True)


class Frames(unittest.TestCase):
    def test_a_frame_for_which_memory_lacks_is_discarded(self) -> None:
        sender, receiver = pair()
        # More than the limit below and a heap of malloc, which the sending thread may just reserve.
        large = bytes(128 << 20)

        def send() -> None:
            sender.send(OUTCOME, 1, Payload(b"small", [large, b"small"]))
            sender.send(OUTCOME, 2, Payload(b"next"))
            sender.close()

        thread = threading.Thread(target=send)
        thread.start()
        with memory_limit(32 << 20):
            discarded, following = list(receiver.receive())
        thread.join()
        self.assertEqual((discarded.task, discarded.discarded_bytes), (1, len(large) + 10))
        self.assertEqual((discarded.payload.size, bytes(following.payload.pickle)), (0, b"next"))
        self.assertEqual((following.task, following.discarded_bytes), (2, 0))
        receiver.close()

    def test_frames_arrive_whole_and_in_order(self) -> None:
        sender, receiver = pair()
        large = os.urandom(3_000_000)
        payloads = [Payload(b"first"), Payload(b""), Payload(b"", [b"", b"x"]), Payload(large, [large[1:], bytearray(large[2:])])]

        def send() -> None:
            for number, payload in enumerate(payloads):
                sender.send(OUTCOME, number, payload)
            sender.close()

        thread = threading.Thread(target=send)
        thread.start()
        for number, payload in enumerate(payloads):
            frame = receiver.receive_one()
            assert frame is not None
            self.assertEqual((frame.kind, frame.task), (OUTCOME, number))
            self.assertEqual(bytes(frame.payload.pickle), payload.pickle)
            self.assertEqual([bytes(buffer) for buffer in frame.payload.buffers], [bytes(b) for b in payload.buffers])
        self.assertIsNone(receiver.receive_one())
        self.assertTrue(receiver.is_at_end)
        thread.join()
        receiver.close()

    def test_a_nonblocking_channel_sends_the_rest_later(self) -> None:
        sender, receiver = pair(blocking=False)
        data = os.urandom(5_000_000)
        sender.send(PICKLED_CALL, 1, Payload(data))
        self.assertTrue(sender.has_outgoing)
        self.assertEqual(list(sender.receive()), [])
        received: list[bytes] = []

        def receive() -> None:
            frame = receiver.receive_one()
            assert frame is not None
            received.append(bytes(frame.payload.pickle))

        thread = threading.Thread(target=receive)
        thread.start()
        while sender.has_outgoing:
            sender.flush()
        thread.join()
        self.assertEqual(received, [data])
        sender.close()
        receiver.close()

    def test_data_sent_before_the_end_is_received(self) -> None:
        sender, receiver = pair()
        sender.send(OUTCOME, 7, Payload(b"last"))
        sender.close()
        self.assertEqual([frame.task for frame in receiver.receive()], [7])
        self.assertTrue(receiver.is_at_end)
        # The receiver's peer has closed its end, so the frame is discarded. Only receiving reports the end.
        receiver.send(OUTCOME, 8, Payload(b"late"))
        self.assertFalse(receiver.has_outgoing)
        receiver.close()

    def test_buffers_are_not_copied_into_the_pickle(self) -> None:
        buffers: list[pickle.PickleBuffer] = []
        data = bytearray(os.urandom(100_000))
        pickled = pickle.dumps(pickle.PickleBuffer(data), 5, buffer_callback=buffers.append)
        self.assertLess(len(pickled), 100)
        payload = Payload(pickled, [buffer.raw() for buffer in buffers])
        self.assertEqual(bytes(payload.load()), bytes(data))
