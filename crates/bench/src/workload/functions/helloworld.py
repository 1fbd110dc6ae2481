"""Returns a greeting: the cost of a call without any work."""


def handler(payload):
    return f"Hello, {payload.get('name', 'world')}!"
