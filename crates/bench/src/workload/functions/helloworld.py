"""Answers at once: what a function costs apart from its work."""


def handler(payload):
    return f"Hello, {payload.get('name', 'world')}!"
