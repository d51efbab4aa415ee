"""The shop that tasks of `web_shop` are about: search, filters, product pages with options, a cart, a checkout.

    /                           search, departments
    /search?q=red+kettle        results in pages, with filters for the department and the price
    /product/P7                 a product, its options, a form that adds it to the cart
    /cart, /checkout            the cart of this customer, and the form for the address
    /orders/1003                an order, for the customer who placed it

Prices come from the catalogue, never from a form. A cookie names the customer of a cart. The reward reads the orders.
Left out: the goods (`web_shop_goods`), accounts, payment, stock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from html import escape
from typing import Any
from urllib.parse import quote, urlencode

from palaestra.envs.browser.site import SiteRequest, SiteResponse
from palaestra.envs.suite.web_shop_goods import Catalogue, Product, money

COOKIE = "customer"
ADDRESS = ("name", "street", "city")
SHOWN = 8
"""Number of results on a page."""
MAX_QUANTITY = 9
MAX_LINES = 20
"""Largest number of lines in a cart, and of orders in an episode."""
MAX_CUSTOMERS = 20
MAX_TEXT = 80
"""Longest field of the address, in characters."""
FIRST_ORDER = 1003
"""Number of the first order of an episode."""


@dataclass
class CartItem:
    """One line of a cart."""

    product: Product
    options: Mapping[str, str]
    quantity: int

    @property
    def cost(self) -> int:
        return self.product.price * self.quantity


class ShopError(Exception):
    """Raised if a request cannot be fulfilled; the page shows the message."""


@dataclass
class ShopSite:
    """The shop of one episode: the carts of its customers, and the orders."""

    catalogue: Catalogue
    carts: dict[str, list[CartItem]] = field(default_factory=dict)
    orders: list[dict[str, Any]] = field(default_factory=list)
    """Orders as plain data: the customer's cookie, the lines with their products, the address."""

    def respond(self, request: SiteRequest) -> SiteResponse:
        """Return the page of an address, or the result of a form."""
        customer = request.cookies.get(COOKIE, "")
        try:
            match request.method, *request.path.strip("/").split("/"):
                case "GET", "":
                    return _page("Home", _SEARCH + self._departments())
                case "GET", "search":
                    return self._results(request.query)
                case "GET", "product", key if key in self.catalogue.products:
                    return self._product(self.catalogue.products[key])
                case "GET", "cart":
                    return self._cart(customer)
                case "POST", "cart":
                    return self._add(customer, request.form)
                case "POST", "cart", "remove":
                    return self._remove(customer, request.form.get("line", ""))
                case "GET", "checkout":
                    return _page("Checkout", _CHECKOUT)
                case "POST", "checkout":
                    return self._order(customer, request.form)
                case "GET", "orders", number:
                    return self._show(customer, number)
        except ShopError as refusal:
            return _page("Not done", f"<p>{escape(str(refusal))}</p>", 400)
        return _page("404 Not Found", "<p>There is no such page.</p>", 404)

    # Pages.

    def _departments(self) -> str:
        links = (
            f"<li><a href='/search?kind={quote(kind)}'>{escape(kind)}</a></li>" for kind in self.catalogue.kinds[:30]
        )
        return f"<h2>Departments</h2><ul>{''.join(links)}</ul>"

    def _results(self, fields: Mapping[str, str]) -> SiteResponse:
        query, kind, max_price = fields.get("q", ""), fields.get("kind", ""), _cents(fields.get("most", ""))
        products = [
            product
            for product in self.catalogue.search(query)
            if kind in ("", product.query) and (max_price is None or product.price <= max_price)
        ]
        page = _count(fields.get("page", "1")) or 1
        rows = "".join(
            f"<tr><td><a href='/product/{quote(product.key)}'>{escape(product.title)}</a></td>"
            f"<td>{money(product.price)}</td></tr>"
            for product in products[SHOWN * (page - 1) : SHOWN * page]
        )
        more = ""
        if len(products) > SHOWN * page:
            filters = {name: fields[name] for name in ("q", "kind", "most") if name in fields}
            more = f"<p><a href='/search?{escape(urlencode({**filters, 'page': page + 1}))}'>Next page</a></p>"
        table = f"<table><tr><th>product</th><th>price</th></tr>{rows}</table>" if rows else "<p>Nothing was found.</p>"
        kinds = "".join(
            f"<option value='{escape(name)}'{' selected' if name == kind else ''}>{escape(name)}</option>"
            for name in self.catalogue.kinds[:30]
        )
        form = (
            f"<form action='/search'><input type='hidden' name='q' value='{escape(query)}'>"
            f"<p><label>Department <select name='kind'><option value=''>all</option>{kinds}</select></label></p>"
            f"<p><label>Highest price <input name='most' value='{escape(fields.get('most', ''))}'></label></p>"
            "<button>Filter</button></form>"
        )
        return _page(f"Results for {query}" if query else kind or "All products", f"{form}{table}{more}")

    def _product(self, product: Product) -> SiteResponse:
        bullets = "".join(f"<li>{escape(bullet)}</li>" for bullet in product.bullets)
        return _page(
            product.title,
            f"<p>Price: {money(product.price)}</p><ul>{bullets}</ul><p>{escape(product.description)}</p>"
            f"<form method='post' action='/cart'><input type='hidden' name='product' value='{escape(product.key)}'>"
            f"<input type='hidden' name='price' value='{product.price}'>"
            + "".join(_chooser(name, values) for name, values in product.options.items())
            + "<p><label>Quantity <input name='quantity' value='1'></label></p><button>Add to cart</button></form>",
        )

    # Forms.

    def _add(self, customer: str, form: Mapping[str, str]) -> SiteResponse:
        product = self.catalogue.products.get(form.get("product", ""))
        if product is None:
            raise ShopError("There is no such product.")
        chosen = {name: form.get(f"option {name}", "") for name in product.options}
        for name, value in chosen.items():
            if value not in product.options[name]:
                raise ShopError(f"Choose one {name} of: {', '.join(product.options[name])}.")
        quantity = _count(form.get("quantity", ""))
        if not 1 <= quantity <= MAX_QUANTITY:
            raise ShopError(f"The quantity is a number from 1 to {MAX_QUANTITY}.")
        headers = {"Location": "/cart"}
        if customer not in self.carts:
            if len(self.carts) >= MAX_CUSTOMERS:
                raise ShopError("The shop is full.")
            customer = blake2b(f"{self.catalogue.number}/{len(self.carts)}".encode(), digest_size=8).hexdigest()
            self.carts[customer] = []
            headers["Set-Cookie"] = f"{COOKIE}={customer}; Path=/; HttpOnly"
        if len(self.carts[customer]) >= MAX_LINES:
            raise ShopError(f"A cart holds {MAX_LINES} lines.")
        self.carts[customer].append(CartItem(product, chosen, quantity))
        return SiteResponse(status=303, headers=headers)

    def _remove(self, customer: str, line: str) -> SiteResponse:
        cart, number = self.carts.get(customer, []), _count(line)
        if not 1 <= number <= len(cart):
            raise ShopError("There is no such line.")
        del cart[number - 1]
        return SiteResponse.redirect("/cart")

    def _cart(self, customer: str) -> SiteResponse:
        cart = self.carts.get(customer, [])
        if not cart:
            return _page("Cart", "<p>The cart is empty.</p>")
        forms = "".join(
            f"<form method='post' action='/cart/remove'>{escape(line.product.title)}: {_lines(line)}"
            f"<input type='hidden' name='line' value='{number}'> <button>Remove</button></form>"
            for number, line in enumerate(cart, 1)
        )
        total = f"<p>Total: {money(sum(line.cost for line in cart))}</p>"
        return _page("Cart", f"{forms}{total}<p><a href='/checkout'>Checkout</a></p>")

    def _order(self, customer: str, form: Mapping[str, str]) -> SiteResponse:
        cart = self.carts.get(customer)
        address = {name: " ".join(form.get(name, "").split()) for name in ADDRESS}
        if not cart:
            raise ShopError("The cart is empty.")
        if not all(0 < len(text) <= MAX_TEXT for text in address.values()):
            raise ShopError(f"The address needs all of: {', '.join(ADDRESS)}; each at most {MAX_TEXT} characters.")
        if len(self.orders) >= MAX_LINES:
            raise ShopError("That is too many orders for one day.")
        lines = [{**line.product.plain(), "chosen": dict(line.options), "quantity": line.quantity} for line in cart]
        self.orders.append({"customer": customer, "lines": lines, "address": address})
        self.carts[customer] = []
        return SiteResponse.redirect(f"/orders/{FIRST_ORDER + len(self.orders) - 1}")

    def _show(self, customer: str, number: str) -> SiteResponse:
        at = _count(number) - FIRST_ORDER
        if not (0 <= at < len(self.orders) and self.orders[at]["customer"] == customer):
            return _page("404 Not Found", "<p>You have no such order.</p>", 404)
        items = "".join(f"<li>{line['quantity']} of {escape(line['title'])}</li>" for line in self.orders[at]["lines"])
        to = escape(", ".join(self.orders[at]["address"].values()))
        return _page(f"Order {number}", f"<p>Thank you. We ship to {to}:</p><ul>{items}</ul>")


_SEARCH = "<form action='/search'><label>Search <input name='q'></label> <button>Go</button></form>"
_CHECKOUT = (
    "<form method='post' action='/checkout'>"
    + "".join(f"<p><label>{name.capitalize()} <input name='{name}'></label></p>" for name in ADDRESS)
    + "<button>Place order</button></form>"
)


def _page(title: str, body: str, status: int = 200) -> SiteResponse:
    menu = "<nav><a href='/'>Home</a> <a href='/cart'>Cart</a></nav>"
    title = escape(title)
    return SiteResponse(f"<!doctype html><title>{title}</title>{menu}<h1>{title}</h1>{body}", status)


def _chooser(name: str, values: Sequence[str]) -> str:
    """Return the form control of an option: radio buttons for up to three values, otherwise a list."""
    field = f"name='option {escape(name)}'"
    if len(values) <= 3:
        buttons = (
            f"<label><input type='radio' {field} value='{escape(value)}'> {escape(value)}</label>" for value in values
        )
        return f"<p>{escape(name)}: {' '.join(buttons)}</p>"
    options = "".join(f"<option>{escape(value)}</option>" for value in values)
    return f"<p><label>{escape(name)} <select {field}><option value=''>choose</option>{options}</select></label></p>"


def _lines(line: CartItem) -> str:
    chosen = "".join(f"{escape(value)}, " for value in line.options.values())
    return f"{chosen}{line.quantity} at {money(line.product.price)}"


def _count(text: str) -> int:
    """Return the number in a text; 0 if it is not a whole number of at most six digits."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0


def _cents(text: str) -> int | None:
    """Return the price of a filter in cents; None if it is not a number."""
    try:
        return round(float(text) * 100)
    except (ValueError, OverflowError):
        return None
