"""The page comes out of the package, whole, and with the right kinds."""

from regard.studio.page_files import KINDS, routes


def test_every_file_has_a_route_and_the_first_is_the_page():
    paths = {route.path for route in routes()}
    assert {"/", "/page/main.js", "/page/studio.css", "/page/icon.svg"} <= paths
    assert "/page/index.html" not in paths
    assert all(path == "/" or path[path.rfind(".") :] in KINDS for path in paths)
