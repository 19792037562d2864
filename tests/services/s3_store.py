"""An S3 store that asks for credentials: moto's server, over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
from mlflow_server import free_port
from services_support import listens
from waiting import wait_for

BUCKET = "runs"
FREE_REQUESTS = 3
"""The requests that moto answers before it asks for credentials: those that make the user."""


class Store:
    """moto's server with a bucket, and the credentials of a user who may use it.

    Args:
        folder: The folder of the server's log.
        host: The address at which it listens.
    """

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self.endpoint = f"http://{host}:{(port := free_port())}"
        log = (folder / "moto.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "--host", host, "--port", str(port)],
            env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": str(FREE_REQUESTS)},
            stdout=log,
            stderr=log,
        )
        wait_for(lambda: listens(port, host))
        iam = self.client("iam", "first", "first")
        iam.create_user(UserName="trainer")
        allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
        iam.put_user_policy(UserName="trainer", PolicyName="store", PolicyDocument=json.dumps(allowed))
        key = iam.create_access_key(UserName="trainer")["AccessKey"]
        self.credentials = key["AccessKeyId"], key["SecretAccessKey"]
        self.s3 = self.client("s3", *self.credentials)
        self.s3.create_bucket(Bucket=BUCKET)

    def client(self, service: str, key: str, secret: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=key,
            aws_secret_access_key=secret,
        )

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs to use the store by MLflow."""
        key, secret = self.credentials
        return {
            "MLFLOW_S3_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def objects(self) -> dict[str, dict[str, Any]]:
        return {entry["Key"]: entry for entry in self.s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])}

    def under_way(self) -> list[str]:
        """The objects of which some part may be there, and not all."""
        return [upload["Key"] for upload in self.s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])]
