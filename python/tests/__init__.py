"""``alone`` needs nothing; ``cluster`` needs root and a running cluster of two nodes or more:

    cd python && python3 -m unittest discover -t . -s tests/alone
    cd python && python3 -m unittest discover -t . -s tests/cluster
"""
