"""Renders an HTML table of 200 rows and 200 columns."""

from chameleon import PageTemplate

ROWS = 200
COLUMNS = 200

TEMPLATE = PageTemplate(
    """<table xmlns="http://www.w3.org/1999/xhtml" xmlns:tal="http://xml.zope.org/namespaces/tal">
<tr tal:repeat="row table"><td tal:repeat="column row.values()" tal:content="column" /></tr>
</table>"""
)


def handler(payload):
    row = {str(column): column for column in range(COLUMNS)}
    return TEMPLATE.render(table=[row for _ in range(ROWS)])
