"""Settings that torch and tokenizers read once, when they are loaded: import this module before either of them.

Idle OpenMP threads spin by default: beside any other busy process two of them are 25 to 45 times slower than one. Not
spinning at all makes small products up to 4 times slower, because waking a thread takes longer than the product. A
spin count of one thousand costs little in either case.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # overrides the policy where torch is built with GNU's OpenMP
# Tokenizers get one short text at a time; their thread pool would only warn about forks.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
