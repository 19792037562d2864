#!/usr/bin/env python3
"""Health check: exits with 0 if a server answers a request that needs its database.

answers.py URL HOST BODY FILE [USER] posts BODY (JSON) to URL with the Host header that clients use, because a server
may refuse an unknown Host. FILE contains the password of USER, or without USER the whole login, `user:password`.
"""

import base64
import sys
import urllib.request
from pathlib import Path


def main() -> None:
    """Sends the request and exits."""
    url, host, body, file, *user = sys.argv[1:]
    login = ":".join([*user, Path(file).read_text()])
    headers = {
        "Authorization": f"Basic {base64.b64encode(login.encode()).decode()}",
        "Content-Type": "application/json",
        "Host": host,
    }
    request = urllib.request.Request(url, body.encode(), headers)
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=45).close()
    except OSError as error:
        sys.exit(f"{url} as {host}: {error}")


if __name__ == "__main__":
    main()
