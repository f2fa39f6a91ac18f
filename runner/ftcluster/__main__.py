"""`python -m ftcluster`: the command line."""

import sys

from ftcluster.cli.main import main

sys.exit(main())
