"""`python -m headrace.demo`."""

import sys

from headrace.demo.main import main

sys.exit(main(sys.argv[1:]))
