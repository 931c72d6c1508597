"""Stand-ins for the tools of a Spark's ConnectX-7, and a frame walk that judges what they hold.

On a node they are the package `standins` below /usr/local/lib/lab, run with nothing but Python's standard library.
"""
