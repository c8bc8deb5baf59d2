"""What runs on the far side of the wall: the fork server and the children it makes.

Standard library only, relative imports only: the directory is bound into the jail as the package `inside` and must not
need the rest of the project. Nothing here is trusted by the host once a script runs; it is only trusted before that.
"""
