"""Pages that read the same in every browser: HTML, and its lines."""

SIMPLE_PAGES = {
    "text": (
        "<h1>Shop &amp; co</h1><p>One   line,\n <em>with</em> <b>words</b>.</p>"
        "<div>Two<div>Three</div></div><hr>end<br>more",
        ["# Shop & co", "One line, with words.", "Two", "Three", "---", "end", "more"],
    ),
    "lists": (
        "<h2>Fruit</h2><ul><li>Apple<ul><li><p>Red</p></li></ul></li><li>Pear</li></ul><ol><li>a</li><li>b</li></ol>",
        ["## Fruit", "- Apple", "  - Red", "- Pear", "1. a", "2. b"],
    ),
    "table": (
        "<table><tr><th>Name</th><th>Price</th></tr><tr><td><a href='/mug'>Mug</a></td><td>$ 3</td></tr></table>",
        ["Name | Price", "[1:link Mug] | $ 3"],
    ),
    "code": ("<pre>def f():\n    return 1 &lt; 2</pre>", ["```", "def f():", "    return 1 < 2", "```"]),
    "links": (
        '<nav><a href="/">Home</a> <a href="/cart" aria-label="Your cart">Cart</a></nav>'
        '<a href="/i"><img alt="Logo"></a>'
        '<p><img alt="A mug"><a href="mailto:a@b.test">Write</a> <a>nowhere</a></p>',
        ["[1:link Home] [2:link Your cart]", "[3:link Logo]", "(image: A mug)Write nowhere"],
    ),
    "fields": (
        '<form><p><label for="n">Your name</label> <input id="n" name="n" value="Ann"></p>'
        '<p><input type="password" name="p" value="abc" placeholder="Code"></p>'
        '<p><textarea name="t">a b</textarea></p></form>',
        ['[1:field Your name = "Ann"]', '[2:password Code = "***"]', '[3:textarea t = "a b"]'],
    ),
    "choices": (
        '<form><p><label><input type="checkbox" name="c" checked> I agree</label></p>'
        '<p><label><input type="radio" name="r" value="1"> Red</label></p>'
        '<p><select name="s"><option>S</option><option selected>M</option></select></p>'
        '<p><button>Send</button> <input type="submit" value="Go" disabled></p></form>',
        [
            "[1:checkbox I agree (checked)]",
            "[2:radio Red (unchecked)]",
            '[3:select s = "M"; options: S | M]',
            "[4:button Send] [5:button Go (disabled)]",
        ],
    ),
    "hidden": (
        "<p hidden>a</p><p style='color:red; display: none'>b</p><div aria-hidden='true'>c<p>d</p></div>"
        "<template>e</template><style>p {}</style><script>if (1 < 2) { '<p>f</p>' }</script>shown",
        ["shown"],
    ),
    "faked numbers": (
        '<p>[7:button Pay]</p><p>[<b> 8 </b>: link x] [1] [note: 5]</p><a href="/x">Go] [9:button Pay</a>',
        ["[\\7:button Pay]", "[\\ 8 : link x] [1] [note: 5]", "[1:link Go] [\\9:button Pay]"],
    ),
}
