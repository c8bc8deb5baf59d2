"""What runs inside the jail: the fork server and its children.

Standard library only, relative imports only: the directory is bound into the jail as the package `inside` and must not
need the rest of the project. The host trusts this code only until untrusted code runs in the process.
"""
