//! Pools over HTTP on one node: many at once, sizes that change, pages, events, slots without an identity.

use serde_json::{Value, json};

use crate::harness::{Fresh, Node, eventually};
use crate::line::Waiting;
use crate::sse::{Message, Stream};

/// Makes a pool.
pub fn create(node: &Node, key: &str, options: &Value) {
    let created = node.call("CREATE", &json!({"key": key, "type": "pool", "options": options}));
    assert_eq!(created["result"], true, "{created}");
}

/// A granted slot: its id and fence.
pub fn given(answer: &Value) -> (u64, u64) {
    let told = |field: &str| answer["result"][field].as_u64().unwrap_or_else(|| panic!("no grant: {answer}"));
    (told("id"), told("fence"))
}

/// A refusal for that reason: after how many ms to ask again, 0 if it does not say.
pub fn refused(answer: &Value, reason: &str) -> u64 {
    assert_eq!((&answer["result"], &answer["reason"]), (&Value::Null, &json!(reason)), "{answer}");
    answer["retry_after_ms"].as_u64().unwrap_or(0)
}

fn identity(name: &str) -> Value {
    json!({"identity": name, "token": format!("secret of {name}"), "ttl_ms": 60_000})
}

fn acquire(node: &Node, name: &str) -> Value {
    node.op("ids", "ACQUIRE", &identity(name))
}

fn release(node: &Node, name: &str) {
    let released = node.op("ids", "RELEASE", &json!({"token": format!("secret of {name}")}));
    assert_eq!(released["result"], true, "{name}: {released}");
}

fn item(operation: &str, args: &Value) -> Value {
    json!({"command": "OP", "key": "ids", "operation": operation, "args": args})
}

/// The ids of a page of HOLDERS, and its cursor.
fn page(node: &Node, args: &Value) -> (Vec<u64>, Value) {
    let mut page = node.op("ids", "HOLDERS", args)["result"].take();
    let ids = page["holders"].as_array().unwrap().iter().map(|slot| slot["id"].as_u64().unwrap()).collect();
    (ids, page["cursor"].take())
}

#[test]
fn many_are_had_in_one_batch_or_none() {
    let Fresh { node, dir: _dir } = Fresh::start();
    create(&node, "ids", &json!({"size": 5}));
    let names = ["a", "b", "c", "d"];
    let commands: Vec<Value> = names.iter().map(|name| item("ACQUIRE", &identity(name))).collect();
    let answer = node.call("BATCH", &json!({"commands": commands, "all_or_nothing": true}));
    let ids: Vec<u64> = answer["result"].as_array().unwrap().iter().map(|item| given(item).0).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
    let before = node.get("ids");
    // There is one, not two.
    let two: Vec<Value> = ["e", "f"].iter().map(|name| item("ACQUIRE", &identity(name))).collect();
    let answer = node.call("BATCH", &json!({"commands": two, "all_or_nothing": true}));
    assert_eq!((&answer["result"], &answer["index"]), (&json!(false), &json!(1)), "{answer}");
    assert_eq!(answer["reason"], "exhausted", "{answer}");
    assert_eq!(node.get("ids")["version"], before["version"], "nothing was done");
    // Each for itself; later ones see what earlier ones did.
    let commands = [
        item("ACQUIRE", &identity("e")),
        item("ACQUIRE", &identity("f")),
        item("RELEASE", &json!({"token": "secret of e"})),
        item("ACQUIRE", &identity("f")),
    ];
    let answer = node.call("BATCH", &json!({"commands": commands}));
    let items = answer["result"].as_array().unwrap();
    refused(&items[1], "exhausted");
    assert_eq!((given(&items[0]).0, &items[2]["result"], given(&items[3]).0), (4, &json!(true), 4), "{answer}");
}

#[test]
fn a_pool_that_shrinks_cuts_nobody() {
    let Fresh { node, dir: _dir } = Fresh::start();
    create(&node, "ids", &json!({"size": 5}));
    for (name, id) in [("a", 0), ("b", 1), ("c", 2), ("d", 3), ("e", 4)] {
        assert_eq!(given(&acquire(&node, name)).0, id);
    }
    let pages = [page(&node, &json!({"limit": 2})), page(&node, &json!({"limit": 2, "cursor": 1}))];
    assert_eq!(pages.map(|(ids, cursor)| (ids, !cursor.is_null())), [(vec![0, 1], true), (vec![2, 3], true)]);
    assert_eq!(page(&node, &json!({"limit": 2, "cursor": 3})), (vec![4], Value::Null));
    assert_eq!(node.op("ids", "RESIZE", &json!({"size": 3}))["result"], true);
    let renewed = node.op("ids", "RENEW", &json!({"token": "secret of e"}));
    assert_eq!((&renewed["result"]["status"], &renewed["result"]["size"]), (&json!("renewed"), &json!(3)), "{renewed}");
    assert_eq!(node.get("ids")["slots"], json!({"held": 5, "quarantined": 0, "free": 0}));
    release(&node, "e");
    refused(&acquire(&node, "e"), "exhausted");
    assert_eq!(page(&node, &json!({})), (vec![0, 1, 2, 3], Value::Null));
    let last = node.op("ids", "HOLDERS", &json!({"id": 4}))["result"]["holders"].take();
    assert_eq!((&last[0]["held"], &last[0]["last"]["reason"]), (&json!(false), &json!("released")), "{last}");
    assert_eq!(node.op("ids", "RESIZE", &json!({"size": 6}))["result"], true);
    assert_eq!(node.get("ids")["options"]["size"], 6);
    assert_eq!(given(&acquire(&node, "f")).0, 5, "never used goes first");
    assert_eq!(given(&acquire(&node, "e")).0, 4, "and it has its own again");
}

/// An event's kind, slot, identity, fence and reason.
fn told(message: &Message) -> (&str, Value, Value, Value, Value) {
    let field = |name: &str| message.data[name].clone();
    (&message.event, field("slot"), field("identity"), field("fence"), field("reason"))
}

#[test]
fn whoever_watches_sees_slots_and_takeovers() {
    let Fresh { node, dir: _dir } = Fresh::start();
    let mut watch = Stream::open(node.addr, "?key=ids&list=false", None);
    assert_eq!(watch.event().event, "reset");
    create(&node, "ids", &json!({"first": 7}));
    let (_, first) = given(&acquire(&node, "a"));
    let over = json!({"identity": "a", "token": "secret of another", "ttl_ms": 60_000});
    let (_, second) = given(&node.op("ids", "ACQUIRE", &over));
    let (_, third) = given(&acquire(&node, "b"));
    assert_eq!(node.op("ids", "RELEASE", &json!({"token": "secret of another"}))["result"], true);
    node.op("ids", "BREAK", &json!({"id": 8, "reason": "wrong host"}));
    let anonymous = node.op("ids", "ACQUIRE", &json!({"owner": "o", "token": "t", "ttl_ms": 60_000}));
    let fourth = given(&anonymous);
    assert_eq!(node.call("DEL", &json!({"keys": ["ids"]}))["result"], 1);

    let events = watch.events(10);
    let (none, a, b) = (Value::Null, json!("a"), json!("b"));
    let of = |kind, slot: u64, identity: &Value, fence: u64, reason: &Value| {
        (kind, json!(slot), identity.clone(), json!(fence), reason.clone())
    };
    let wanted = [
        ("created", none.clone(), none.clone(), none.clone(), none.clone()),
        of("granted", 7, &a, first, &none),
        of("released", 7, &a, first, &json!("taken_over")),
        of("granted", 7, &a, second, &none),
        of("granted", 8, &b, third, &none),
        of("released", 7, &a, second, &json!("released")),
        of("broken", 8, &b, third, &json!("broken")),
        of("granted", 9, &none, fourth.1, &none),
        of("deleted", 9, &none, fourth.1, &json!("deleted")),
        ("deleted", none.clone(), none.clone(), none.clone(), none.clone()),
    ];
    assert_eq!(events.iter().map(told).collect::<Vec<_>>(), wanted);
    assert_eq!(events[6].data["detail"], "wrong host");
    assert!(events.windows(2).all(|pair| pair[0].place() < pair[1].place()), "{events:#?}");
    assert!(!format!("{events:?}").contains("secret"), "no token is ever told");
}

/// Who waits for a slot gets the one that is given back, in the order in which they came; an identity and an owner are in
/// one line.
#[test]
fn a_line_for_slots_is_served_in_order() {
    let Fresh { node, dir: _dir } = Fresh::start();
    create(&node, "ids", &json!({"size": 2}));
    assert_eq!(given(&acquire(&node, "a")).0, 0);
    assert_eq!(given(&acquire(&node, "b")).0, 1);
    let in_line = |count: u64| {
        eventually("they wait", || (node.get("ids")["waiters"] == count).then_some(()));
    };
    let mut owner = Waiting::ask(node.addr, "ids", "o");
    in_line(1);
    let waits = json!({"identity": "c", "owner": null, "create": null});
    let mut other = Waiting::ask_with(node.addr, "ids", "c", &waits, "");
    in_line(2);
    release(&node, "b");
    let first = owner.answer();
    release(&node, "a");
    let second = other.answer();
    assert_eq!((given(&first).0, &first["result"]["identity"]), (1, &Value::Null), "{first}");
    assert_eq!((given(&second).0, &second["result"]["identity"]), (0, &json!("c")), "{second}");
    assert!(given(&second).1 > given(&first).1);
}
