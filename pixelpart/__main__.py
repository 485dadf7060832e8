import sys

from pixelpart.cli.main import main

sys.exit(main())
