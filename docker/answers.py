#!/usr/bin/env python3
"""Health check: exits with 0 if a server answers a request that needs its database.

answers.py URL HOST BODY posts BODY (JSON) to URL with the Host header that clients use, because a server may refuse an
unknown Host.
"""

import sys
import urllib.request


def main() -> None:
    """Sends the request and exits."""
    url, host, body = sys.argv[1:]
    request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json", "Host": host})
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=45).close()
    except OSError as error:
        sys.exit(f"{url} as {host}: {error}")


if __name__ == "__main__":
    main()
