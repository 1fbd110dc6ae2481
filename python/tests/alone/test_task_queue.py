"""Tests the queue of waiting tasks, from which any can be removed."""

import unittest

from farfork._task_queue import TaskQueue


class Queue(unittest.TestCase):
    def test_tasks_are_taken_in_order_without_removed_ones(self) -> None:
        tasks = [object() for _ in range(5)]
        queue: TaskQueue[object] = TaskQueue()
        for task in tasks[1:]:
            queue.append(task)
        queue.append_first(tasks[0])
        queue.remove(tasks[1])
        queue.remove(tasks[4])
        self.assertEqual((len(queue), list(queue)), (3, [tasks[0], tasks[2], tasks[3]]))
        self.assertEqual([queue.take(), queue.take()], [tasks[0], tasks[2]])
        self.assertEqual((queue.take_all(), len(queue), queue.take()), ([tasks[3]], 0, None))
