"""Ranks the vertices of a Barabási graph by PageRank."""

import random

import igraph

VERTICES = 100_000
EDGES_PER_VERTEX = 10

random.seed(1)
GRAPH = igraph.Graph.Barabasi(VERTICES, EDGES_PER_VERTEX)


def handler(payload):
    ranks = GRAPH.pagerank()
    best = sorted(range(VERTICES), key=lambda vertex: (-ranks[vertex], vertex))[:10]
    return [[vertex, round(ranks[vertex], 12)] for vertex in best]
