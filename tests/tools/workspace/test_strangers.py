"""Who else is on the machine, or has a page open in its browser, gets nothing from the workspace."""

import base64
import http.client
from http import HTTPStatus

import pytest

from connectors_tools.fake_workspace import FakeWorkspace

ME = "/api/2.0/preview/scim/v2/Me"


def status(workspace: FakeWorkspace, method: str, path: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", int(workspace.url.rpartition(":")[2]), timeout=10)
    try:
        connection.request(method, path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def basic(client: str, secret: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{client}:{secret}'.encode()).decode()}"}


def test_a_token_is_for_who_knows_the_secret_of_this_workspace(workspace: FakeWorkspace) -> None:
    client, secret = workspace.tokens.client
    with FakeWorkspace() as other:
        strangers = [{}, basic(client, ""), basic(client, "its-secret"), basic(client, other.tokens.client[1])]
    statuses = [status(workspace, "POST", "/oidc/v1/token", stranger) for stranger in strangers]
    assert statuses == [HTTPStatus.UNAUTHORIZED] * 4
    assert status(workspace, "POST", "/oidc/v1/token", basic(client, secret)) == HTTPStatus.OK


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1.evil.example:{port}", ""])
def test_a_site_whose_name_leads_here_is_refused(workspace: FakeWorkspace, host: str) -> None:
    port = workspace.url.rpartition(":")[2]
    headers = {"Authorization": f"Bearer {workspace.tokens.personal}", "Host": host.format(port=port)}
    assert status(workspace, "GET", ME, headers) == HTTPStatus.FORBIDDEN
    assert status(workspace, "GET", ME, {**headers, "Host": f"localhost:{port}"}) == HTTPStatus.OK
    assert workspace.faults.calls == [f"GET {ME}"]
