import sys

from pixelpart.cli import main

sys.exit(main())
