"""The sites of WebNav and WebShop, asked directly: what every page holds, and what a customer cannot do."""

import re
from html.parser import HTMLParser
from urllib.parse import urlencode

import pytest

from palaestra.envs.browser.site import SiteRequest
from palaestra.envs.suite.web_nav_world import LIST_PAGES, LISTS, Institute
from palaestra.envs.suite.web_shop_goods import draw_catalogue
from palaestra.envs.suite.web_shop_site import COOKIE, FIRST_ORDER, MAX_LINES, ShopSite

ADDRESS = {"name": "Bado Kemu", "street": "Tila 12", "city": "Momu"}


def get(site, path):
    return site.respond(SiteRequest(f"http://site.test{path}"))


def reached(site):
    """Every page that links lead to, by address."""
    found, waiting = {}, ["/"]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found[path] = get(site, path)
            waiting += re.findall(r"href='([^']+)'", found[path].body)
    return found


def test_every_link_of_an_institute_leads_to_a_page_and_every_page_is_linked_to():
    size = 3
    pages = reached(Institute(5, size))
    assert {page.status for page in pages.values()} == {200}
    a_list = LIST_PAGES + size * LIST_PAGES
    # Home, two dead ends and the archive; then each department with its lists.
    assert len(pages) == 4 + size * (1 + len(LISTS) * a_list)


def test_the_same_number_is_the_same_site_and_another_one_another():
    one, same, other = (reached(Institute(number, 2)) for number in (5, 5, 6))
    assert one == same
    shared = [path for path in one if one[path] == other[path]]
    assert sorted(shared) == ["/about", "/news", "/news/1"]


def test_what_holds_in_one_world_says_nothing_of_the_same_place_in_another():
    for place in (("head", 0), ("bonus", 0, "people", 0), ("circulation", 1, "documents", 1)):
        facts = {Institute(number, 2).fact(*place) for number in range(60)}
        assert len(facts) > 30, place


def test_names_of_a_list_are_all_different_though_each_nearly_has_a_double():
    for number in range(20):
        for kind in LISTS:
            names = Institute(number, 30).entries(1, kind)
            assert len(set(names)) == len(names)
            assert all(one.split()[0] == two.split()[0] for one, two in zip(names[::2], names[1::2], strict=True))


@pytest.mark.parametrize("path", [
    "/d/99", "/d/-1", "/d/٣", "/d/0/people?page=0", "/d/0/people?page=3", "/d/0/people/x", "/d/0/secrets", "/d/1e9",
    "/d/" + "9" * 5000, "/d/0/people?page=" + "9" * 5000, "/\0",
])  # fmt: skip
def test_an_address_that_is_none_is_not_found(path):
    assert get(Institute(5, 3), path).status == 404


class Customer:
    """Asks a shop, with a cookie of its own."""

    def __init__(self, shop):
        self.shop, self.cookies = shop, {}

    def get(self, path):
        return self.shop.respond(SiteRequest(f"http://shop.test{path}", cookies=self.cookies))

    def post(self, path, **fields):
        body = urlencode({name.replace("_", " "): value for name, value in fields.items()}).encode()
        request = SiteRequest(f"http://shop.test{path}", "POST", body, self.cookies)
        answer = self.shop.respond(request)
        if cookie := answer.headers.get("Set-Cookie"):
            name, _, value = cookie.partition(";")[0].partition("=")
            self.cookies = {name: value}
        return answer

    def put(self, one, **fields):
        chosen = {f"option_{name}": values[0] for name, values in one.options.items()}
        return self.post("/cart", **{"product": one.key, "quantity": "1", **chosen, **fields})


@pytest.fixture
def shop():
    return ShopSite(draw_catalogue(3))


def some(shop):
    return next(iter(shop.catalogue.products.values()))


class Balance(HTMLParser):
    """The tags that are open."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("input", "!doctype"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_every_page_of_a_shop_is_found_by_links_and_closes_what_it_opens(shop):
    pages = reached(shop)
    assert {page.status for page in pages.values()} == {200}
    assert {f"/product/{key}" for key in shop.catalogue.products} <= set(pages)
    for page in pages.values():
        balance = Balance()
        balance.feed(page.body)
        assert balance.open == []


def test_an_order_costs_what_the_catalogue_says_whatever_the_form_says(shop):
    customer, product = Customer(shop), some(shop)
    assert customer.put(product, price="1", query="kettle", title="gold", total="0").status == 303
    placed = customer.post("/checkout", **ADDRESS, price="1")
    assert placed.headers["Location"] == f"/orders/{FIRST_ORDER}"
    (order,) = shop.orders
    (line,) = order["lines"]
    assert (line["price"], line["query"], line["title"]) == (product.price, product.query, product.title)
    assert order["address"] == ADDRESS


@pytest.mark.parametrize("wrong", [
    {"quantity": "0"}, {"quantity": "-1"}, {"quantity": "1.5"}, {"quantity": "9" * 400}, {"quantity": ""},
    {"quantity": "10"}, {"product": "P999"}, {"product": ""}, {"option_size": "huge"}, {"option_colour": ""},
])  # fmt: skip
def test_what_is_not_offered_is_not_put_into_a_cart(shop, wrong):
    customer = Customer(shop)
    assert customer.put(some(shop), **wrong).status == 400
    assert not shop.carts


@pytest.mark.parametrize("address", [
    {}, {**ADDRESS, "city": " "}, {**ADDRESS, "name": "x" * 10_000}, {"name": "Bado Kemu", "street": "Tila 12"},
])  # fmt: skip
def test_an_order_without_an_address_is_none(shop, address):
    customer = Customer(shop)
    customer.put(some(shop))
    assert customer.post("/checkout", **address).status == 400
    assert shop.orders == []
    assert customer.post("/checkout", **ADDRESS).status == 303


def test_carts_and_orders_of_others_are_out_of_reach(shop):
    owner, thief = Customer(shop), Customer(shop)
    owner.put(some(shop))
    for cookie in ("", "1", "customer", "' or 1=1 --", "*"):
        thief.cookies = {COOKIE: cookie}
        assert "empty" in thief.get("/cart").body
        assert thief.post("/checkout", **ADDRESS).status == 400
        assert thief.post("/cart/remove", line="1").status == 400
    owner.post("/checkout", **ADDRESS)
    assert thief.get(f"/orders/{FIRST_ORDER}").status == 404
    assert owner.get(f"/orders/{FIRST_ORDER}").status == 200
    assert owner.get("/orders/1001").status == 404
    assert len(shop.orders) == 1


def test_an_order_is_placed_once_and_a_shop_takes_only_so_many(shop):
    customer = Customer(shop)
    customer.put(some(shop))
    assert customer.post("/checkout", **ADDRESS).status == 303
    assert customer.post("/checkout", **ADDRESS).status == 400
    for _ in range(200):
        other = Customer(shop)
        other.put(some(shop))
        other.post("/checkout", **ADDRESS)
    assert len(shop.orders) <= MAX_LINES
    for _ in range(200):
        customer.put(some(shop))
    assert sum(map(len, shop.carts.values())) <= MAX_LINES * len(shop.carts)


def test_a_search_puts_first_what_holds_most_words_and_filters_keep_the_rest_away(shop):
    product = some(shop)
    found = shop.catalogue.search(f"{product.title} {' '.join(product.attributes)}")
    assert found[0] == product
    cheap = get(shop, f"/search?kind={product.query}&most=50").body
    prices = [float(price) for price in re.findall(r"<td>\$([\d.]+)</td>", cheap)]
    assert all(price <= 50 for price in prices)
    for strange in ("nan", "inf", "-1", "1e400", "<b>", "٣"):
        assert get(shop, f"/search?{urlencode({'q': '<script>', 'most': strange, 'page': strange})}").status == 200
        assert "<script>" not in get(shop, f"/search?{urlencode({'q': '<script>', 'most': strange})}").body
