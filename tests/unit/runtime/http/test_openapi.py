"""Routes that describe themselves: what FastAPI makes of them is made when it is first asked for."""

import httpx
import pytest
from fastapi import APIRouter
from starlette.responses import Response

from epochal.runtime.http.openapi import DescribedApp, DescribedRoute


async def test_route_is_made_at_its_first_request() -> None:
    router = APIRouter(route_class=DescribedRoute)

    @router.put("/things/{name}", summary="Put a thing")
    async def put(name: str) -> Response:
        return Response(name)

    (route,) = router.routes
    app = DescribedApp(title="t")
    app.router.routes += router.routes
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as http:
        refused = await http.get("/things/a")
        assert (refused.status_code, refused.headers["allow"]) == (405, "PUT")
        assert "dependant" not in vars(route)
        assert (await http.put("/things/a")).text == "a"
        assert "dependant" in vars(route)
        assert app.openapi()["paths"]["/things/{name}"]["put"]["summary"] == "Put a thing"
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = route.colour  # type: ignore[attr-defined]
