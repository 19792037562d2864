#!/usr/bin/env python3
"""Whether a server answers a question that needs its database: exit code 0 if it does.

answers.py URL HOST BODY posts BODY, JSON, to URL, under the name by which clients ask: a server may refuse a Host that
it does not know, and is then of no use to them, however well it is.
"""

import sys
import urllib.request


def main() -> None:
    """Asks, and exits."""
    url, host, body = sys.argv[1:]
    request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json", "Host": host})
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=45).close()
    except OSError as error:
        sys.exit(f"{url} as {host}: {error}")


if __name__ == "__main__":
    main()
