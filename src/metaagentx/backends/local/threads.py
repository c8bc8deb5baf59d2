"""Settings that torch and tokenizers read once, when they are loaded: import this module before either of them.

Idle OpenMP threads spin by default: beside any other busy process two of them are 25 to 45 times slower than one.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Our tokenizers work on one short text at a time; a pool of threads of their own would only warn about forks.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
