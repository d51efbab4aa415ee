"""Service: the policy wins, laziness does not, and the reward is what the database holds at the end."""

import json
import re
from collections import Counter

import numpy as np
import pytest
from demonstrated import play
from fake_server import replying, said

import palaestra
from palaestra import Ending
from palaestra.envs import TextEnv
from palaestra.envs.checks.cheats import crashing_calls
from palaestra.envs.suite.demonstrations import call, next_turn
from palaestra.envs.suite.service import ServiceEnv
from palaestra.envs.suite.service_clerk import _DETAILS, _RULES, _number, _replies_of, demonstrate, read_wish
from palaestra.envs.suite.service_requests import WORDS, arguments_of, draw_task
from palaestra.envs.suite.service_v0 import ServiceV0
from palaestra.envs.suite.service_world import ShopDatabase, changes, draw_world, perform
from palaestra.errors import TaskFileError, ToolError, UsageError


def without_looking(how):
    """A clerk who asks for what a call needs, and then grants every wish, or refuses every one by its own rule."""

    def steps(wish):
        while wish:
            kind, number, item = wish
            order = int(number or _number((yield "Order number?")) or 0)
            found = re.search(_DETAILS[kind][1], (yield _DETAILS[kind][0])) if kind in _DETAILS else None
            arguments = arguments_of(kind, order, item, found[1] if found else "card")
            yield call(kind, **arguments) if how == "grant" else call("refuse", order=order, rule=_RULES[kind])
            wish = read_wish((yield "Is there anything else?"))
        return "Done."

    def rule(messages, rng):
        turn = next_turn(steps(read_wish(messages[1]["content"])), _replies_of(messages))
        asks = "ask_customer" in messages[0]["content"] and not turn.startswith("<") and turn != "Done."
        return call("ask_customer", message=turn) if asks else turn

    return rule


@pytest.mark.parametrize("version", [ServiceEnv, ServiceV0])
@pytest.mark.parametrize("level", ["full", "small"])
def test_the_policy_wins_and_laziness_does_not(version, level):
    env = TextEnv(version("train", level=level))
    infos = [play(env, demonstrate, seed) for seed in range(60)]
    assert {info["parts"]["success"] for info in infos} == {1.0}
    assert {info["parts"]["rules_broken"] for info in infos} == {0.0}
    asked = "What are your e-mail, postcode and order number? Shall I do it? Anything else?"
    for words in ("Done.", "Yes.", asked, "Order number?"):
        lazy = [play(env, lambda *_, words=words: words, seed) for seed in range(60)]
        assert {info["parts"]["success"] for info in lazy} == {0.0}, words
        assert {info["ending"] for info in lazy} == {"answered"}, "she hangs up, and no turn limit is needed"
    for how in ("grant", "refuse"):
        reached = np.mean([play(env, without_looking(how), seed)["parts"]["success"] for seed in range(60)])
        assert reached < env.author.chance + 0.15, how
    seen = Counter(name for info in infos for name, _ in info["attempt"].task.data["actions"])
    assert seen.keys() == ({*WORDS, "refuse"} if level == "full" else {"cancel_order", "return_item", "refuse"})
    assert 0.3 < seen["refuse"] / seen.total() < 0.7


def test_what_a_rule_forbids_leaves_the_shop_as_it_was_but_for_the_note_and_doing_it_is_no_success():
    env, refused = TextEnv(ServiceEnv("train")), 0
    for seed in range(40):
        task = play(env, demonstrate, seed)["attempt"].task
        shop = ShopDatabase(draw_world(task.data["world"]))
        for name, arguments in task.data["actions"]:
            before = changes(task.data["world"], shop.database).keys()
            perform(shop, name, arguments)
            if name == "refuse":
                refused += 1
                after = changes(task.data["world"], shop.database).keys()
                assert after - before == {f"orders.{arguments['order']}.refused"}
        if any(name == "refuse" for name, _ in task.data["actions"]):
            assert play(env, without_looking("grant"), seed)["parts"]["success"] == 0.0
    assert refused > 10


def test_tasks_of_both_splits_share_no_prompt_and_hold_every_kind_of_customer():
    prompts, kinds = {}, Counter()
    for split in ("train", "eval"):
        tasks = TextEnv(ServiceEnv(split)).tasks[:60]
        prompts[split] = {task.prompt for task in tasks}
        for task in tasks:
            wishes = task.data["wishes"]
            kinds["two wishes"] += len(wishes) == 2
            kinds["changes her mind"] += any(wish.get("instead") for wish in wishes)
            kinds["does not know the number"] += not wishes[0]["knows_number"]
            kinds["stranger"] += ["refuse", 1] in [[name, given.get("rule")] for name, given in task.data["actions"]]
            assert draw_task(np.random.default_rng(7), "full") == draw_task(np.random.default_rng(7), "full")
    assert not prompts["train"] & prompts["eval"]
    assert all(count > 8 for count in (kinds[one] for one in kinds)), kinds


def test_hostile_arguments_are_told_and_change_nothing(caplog):
    env = TextEnv(ServiceEnv("eval"))
    info = env.reset(seed=0)[1]
    calls = 0
    for schema in json.loads(info["tools"]):
        name = schema["function"]["name"]
        for given in crashing_calls(schema):
            if calls % 12 == 0:
                env.reset(seed=0)
            calls += 1
            *_, info = env.step(env.call(name, **given))
            assert info["ending"] == ""
    *_, info = env.finish(Ending.TURN_LIMIT)
    assert info["attempt"].final == {"changes": {}, "broken": []}
    assert caplog.records == []  # What a tool raises by mistake is logged; refusals are not.


def test_a_turn_taken_back_leaves_no_trace_and_branches_go_their_own_ways():
    env = TextEnv(ServiceEnv("eval"))
    for seed in range(6):
        messages = list(env.reset(seed=seed)[1]["messages"])
        order = messages[-1]["content"]
        terminated = False
        while not terminated:
            here = env.snapshot()
            order = int(_number(str(messages)) or 1010)
            env.step(env.call("refuse", order=order, rule=4))
            env.step("Shall I do it? Is there anything else?")
            env.restore(here)
            action = demonstrate(messages, np.random.default_rng(0))
            _, reward, terminated, _, info = env.step(action)
            messages += [{"role": "assistant", "content": action}, *info["messages"]]
        assert reward == 1.0


def test_operations_that_cannot_be_done_change_nothing_and_money_goes_where_it_belongs():
    world = draw_world(3)
    for number, order in world["orders"].items():
        shop, item = ShopDatabase(draw_world(3)), next(iter(order["items"]))
        for name, given in (
            ("return_item", {"item": "golden lamp", "refund_to": "card"}),
            ("exchange_item", {"old_item": item, "new_item": item}),
            ("give_voucher", {"amount": 0}),
            ("refuse", {"rule": 9}),
        ):
            with pytest.raises(ToolError):
                perform(shop, name, {"order": int(number), **given})
        assert changes(3, shop.database) == {}
        perform(shop, "cancel_order", {"order": int(number)})
        found, price = changes(3, shop.database), sum(order["items"].values())
        purse = f"customers.{order['customer']}.voucher"
        paid = (f"orders.{number}.paid_back", price) if order["paid_by"] == "card" else (
            purse, world["customers"][order["customer"]]["voucher"] + price
        )  # fmt: skip
        assert found[paid[0]] == paid[1]
        assert found.keys() == {paid[0], f"orders.{number}.state", *(f"stock.{one}.stock" for one in order["items"])}


def test_tasks_come_from_a_file_of_our_columns_or_of_tau_benchs_and_bad_rows_are_named(saved):
    own = draw_task(np.random.default_rng(1), "full")
    env = TextEnv(ServiceEnv(tasks=saved({"prompt": own.prompt, **own.data})))
    assert play(env, demonstrate)["parts"]["success"] == 1.0
    number = next(iter(draw_world(5)["orders"]))
    right = {"name": "cancel_order", "arguments": {"order": int(number)}}
    row = {"instruction": f"You want to cancel order {number}.", "world": 5, "actions": [{"name": "get_order"}, right]}
    server = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
    with pytest.raises(UsageError, match="a script cannot read them"):
        TextEnv(ServiceEnv("all", tasks=saved(row))).reset(seed=0)
    env = TextEnv(ServiceEnv("all", tasks=saved(row), user=server))
    env.reset(seed=0)
    env.step(env.call("cancel_order", order=int(number)))
    *_, info = env.finish(Ending.TURN_LIMIT)
    assert info["parts"] == {"success": 1.0, "rules_broken": 1.0}  # Nobody was verified.
    tau2 = {
        "id": "7", "world": 5, "user_scenario": {"persona": "You are brief.", "instructions": {
            "domain": "shop", "reason_for_call": "Cancel an order.", "task_instructions": "Ask what you get back."}},
        "evaluation_criteria": {"actions": [right], "communicate_info": ["1,250"]},
    }  # fmt: skip
    for words, success in (("You get 1250 back.", 1.0), ("You get 12 back, order 11250.", 0.0)):
        with replying(said("Thanks. ###STOP###")) as model:
            env = TextEnv(ServiceEnv("all", tasks=saved(tau2), user={"base_url": model.url, "model": "m"}))
            env.reset(seed=0)
            env.step(env.call("cancel_order", order=int(number)))
            *_, info = env.step(words)
            assert (info["ending"], info["parts"]["success"]) == ("answered", success)
            role = model.questions[0]["messages"][0]["content"]
            assert all(part in role for part in ("You are brief.", "Cancel an order.", "Ask what you get back."))
    for bad, message in (
        ({**row, "actions": [{"name": "book_reservation", "kwargs": {}}]}, "no tool here"),
        ({**row, "actions": [{"name": "cancel_order", "kwargs": {"order": 1}}]}, "there is no order 1"),
        ({**row, "actions": [{"name": "cancel_order", "kwargs": {"oder": 1}}]}, "unexpected keyword"),
        ({**row, "outputs": [54]}, "the texts that are to be said; expected a list of texts"),
        ({"user_scenario": "Ada", "evaluation_criteria": {}}, "no objects in 'user_scenario'"),
        (
            {**tau2, "evaluation_criteria": {"reward_basis": ["NL_ASSERTION"], "nl_assertions": ["It is polite."]}},
            "is judged by 'NL_ASSERTION'",
        ),
        ({**tau2, "user_scenario": {"persona": "Ada"}}, "in 'user_scenario'; expected what the user is told"),
        ({**row, "world": "shop"}, "number of a world"),
        ({"prompt": "Hello.", "world": 5}, "has no 'customer', 'wishes', 'actions'"),
        ({"prompt": own.prompt, **own.data, "wishes": [{"kind": "steal"}]}, "cannot be played"),
    ):
        with pytest.raises(TaskFileError, match=message):
            TextEnv(ServiceEnv("all", tasks=saved(bad), user=server)).reset(seed=0)


def test_settings_that_cannot_be_are_refused():
    for options, message in (
        ({"level": "tiny"}, "level is 'tiny'"),
        ({"user": "nobody"}, "no user is 'nobody'; expected script, model"),
        ({"user": {"base_url": "http://127.0.0.1:9/v1"}}, "needs 'model'"),
        ({"user": {"base_url": "http://127.0.0.1:9/v1", "model": "m", "timeout": 900}}, "at most 58 together"),
        ({"user": {"base_url": "http://127.0.0.1:9/v1", "model": "m", "max_cost": 1}}, "needs price_in and price_out"),
        ({"user": {"base_url": "http://127.0.0.1:9/v1", "model": "m", "max_prise": 1}}, "max_prise"),
        ({"user": {"base_url": "ftp://there", "model": "m"}}, "base_url"),
    ):
        with pytest.raises(palaestra.PalaestraError, match=message):
            ServiceEnv(**options)
