"""``alone`` needs no daemon; ``cluster`` needs root and a running cluster of at least two nodes:

    cd python && python3 -m unittest discover -t . -s tests/alone
    cd python && python3 -m unittest discover -t . -s tests/cluster
"""
