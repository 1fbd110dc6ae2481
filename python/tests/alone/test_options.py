"""Tests an executor's arguments as fields of fork requests."""

import unittest
from typing import Any

import farfork
from farfork import _protocol
from farfork._options import fork_fields, parse_size, split_commas

DEFAULTS: dict[str, Any] = {
    "nodes": [],
    "strategy": "",
    "memory": None,
    "cpus": None,
    "processes": None,
    "net": "private",
    "egress": (),
    "untrusted": False,
    "user_namespace": False,
}


class Options(unittest.TestCase):
    def test_sizes_have_units(self) -> None:
        sizes: dict[int | str, int] = {"512MiB": 512 << 20, "1.5 GiB": 3 << 29, "10": 10, "2 kib": 2048, 7: 7}
        self.assertEqual({size: parse_size(size) for size in sizes}, sizes)
        for wrong in ("", "MiB", "1 MB", "-1", "1e3"):
            with self.assertRaisesRegex(ValueError, "not a size"):
                parse_size(wrong)

    def test_options_become_fields_of_a_request(self) -> None:
        fields = fork_fields(**{**DEFAULTS, "memory": "64MiB", "cpus": 0.5, "egress": "any,192.0.2.7:443"})
        self.assertEqual(fields["flags"], _protocol.FORK_OWNS_SEED | _protocol.FORK_ANY_NODE)
        self.assertEqual((fields["memory_bytes_max"], fields["cpu_millicores_max"]), (64 << 20, 500))
        self.assertEqual(fields["egress"], "any,192.0.2.7:443")
        _protocol.encode(_protocol.FORK, 0, **fields)

    def test_wrong_arguments_are_refused(self) -> None:
        for name, value in [
            ("memory", 0),
            ("cpus", 0.0001),
            ("processes", 0),
            ("net", "public"),
            ("user_namespace", True),
        ]:
            with self.assertRaises(ValueError):
                fork_fields(**{**DEFAULTS, name: value})

    def test_a_timeout_is_a_number_of_seconds(self) -> None:
        wrong: Any = "10s"
        with self.assertRaisesRegex(TypeError, "number of seconds, .* not '10s'"):
            farfork.Executor(timeout=wrong)

    def test_node_names_may_be_separated_by_commas(self) -> None:
        self.assertEqual([split_commas(names) for names in (None, "n2,n3", ["n2"])], [[], ["n2", "n3"], ["n2"]])
