"""python -m tf_pflego.report DIR [DIR ...] [--output=report.html]."""

import sys

from tf_pflego.report import command

if __name__ == "__main__":
    sys.exit(command(sys.argv[1:], "python -m tf_pflego.report"))
