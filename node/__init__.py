"""The program that runs on a node: Python standard library only, shipped as one zip.

`python3 spark-node.pyz VERB` with a request as JSON on stdin; see `node.request` for its form and the exit codes.
`plane`, `relay`, `digest` and `owner` hold pure functions that the planner uses as well.
"""
