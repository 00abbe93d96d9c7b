//! Against nodes that say what they are told to, over real sockets.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::follower::{Pages, Told, Wrong};
use super::sse::Message;
use super::{Notice, Selection, Watch, WatchError};
use crate::client::{Client, Options};
use crate::fake::{nowhere, uri};
use crate::time::HostClock;

/// What the node does after its answer.
#[derive(Clone, Copy)]
enum Then {
    Close,
    Hang,
}

/// A node that answers its connections in turn, the last text also to all that follow.
struct Node {
    address: String,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Node {
    async fn start(answers: Vec<(String, Then)>) -> Node {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let heads: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&heads);
        tokio::spawn(async move {
            let mut open = Vec::new();
            for turn in 0.. {
                let Ok((mut stream, _)) = listener.accept().await else { return };
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = stream.read_u8().await else { break };
                    head.push(byte);
                }
                seen.lock().unwrap().push(String::from_utf8(head).unwrap());
                let (answer, then) = answers.get(turn).or(answers.last()).unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
                if matches!(then, Then::Hang) {
                    open.push(stream);
                }
            }
        });
        Node { address, heads }
    }

    /// The ids that it was asked to go on after.
    fn resumed(&self) -> Vec<Option<String>> {
        let id = |head: &String| {
            let line = head.lines().find_map(|line| line.strip_prefix("last-event-id: "));
            line.map(str::to_owned)
        };
        self.heads.lock().unwrap().iter().map(id).collect()
    }
}

fn stream(messages: &[(&str, &str, &str)]) -> String {
    let mut text = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n".to_owned();
    for (id, event, data) in messages {
        if !id.is_empty() {
            text.push_str(&format!("id: {id}\n"));
        }
        text.push_str(&format!("event: {event}\ndata: {data}\n\n"));
    }
    text
}

fn problem(status: u16, code: &str) -> String {
    let body =
        format!(r#"{{"type":"/problems/{code}","title":"t","status":{status},"code":"{code}","detail":"told so"}}"#);
    format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    )
}

fn client(addresses: &[&str]) -> Client {
    Client::with(&uri(addresses), Options::default(), Arc::new(HostClock))
}

const START: (&str, &str, &str) = ("c-5.0", "reset", r#"{"reason":"start","keys":null,"more":false}"#);

fn granted(key: &str) -> String {
    format!(r#"{{"key":"{key}","fence":7,"owner":"me","ttl_ms":100,"position":"6.0","clock_ms":9}}"#)
}

async fn next(watch: &mut Watch) -> Notice {
    tokio::time::timeout(Duration::from_secs(10), watch.next()).await.unwrap().unwrap()
}

async fn error(watch: &mut Watch) -> WatchError {
    tokio::time::timeout(Duration::from_secs(10), watch.next()).await.unwrap().unwrap_err()
}

#[tokio::test]
async fn it_goes_on_at_another_node_after_what_was_read_last() {
    let first = Node::start(vec![(stream(&[START, ("c-6.0.0", "granted", &granted("a"))]), Then::Close)]).await;
    let beat = ("c-8.0.1", "heartbeat", "");
    let second = Node::start(vec![(stream(&[("c-7.0.0", "granted", &granted("b")), beat]), Then::Close)]).await;
    let cut = ("", "cut", r#"{"reason":"leaving"}"#);
    let third =
        Node::start(vec![(stream(&[cut]), Then::Hang), (stream(&[("c-9.0.0", "granted", &granted("c"))]), Then::Hang)])
            .await;
    let gone = nowhere();
    let mut watch =
        Watch::new(&client(&[&first.address, &second.address, &gone, &third.address]), Selection::default());
    assert!(
        matches!(next(&mut watch).await, Notice::Reset { reason, keys: None, id } if reason == "start" && id == "c-5.0")
    );
    let Notice::Event(event) = next(&mut watch).await else { panic!() };
    assert_eq!((&*event.id, &*event.kind, &*event.key, event.fence), ("c-6.0.0", "granted", "a", Some(7)));
    assert_eq!(next(&mut watch).await.id(), "c-7.0.0");
    // The first and the second tell the same again: this fake knows no better. The third one's event ends it.
    while next(&mut watch).await.id() != "c-9.0.0" {}
    assert_eq!(second.resumed()[0].as_deref(), Some("c-6.0.0"));
    assert_eq!(third.resumed()[0].as_deref(), Some("c-8.0.1"), "a heartbeat counts as read");
    assert_eq!(watch.trouble(), None);
}

#[tokio::test]
async fn the_pages_of_a_reset_are_one_and_a_torn_one_is_none() {
    let page = |key: &str, more: bool| format!(r#"{{"reason":"too_old","keys":[{{"key":"{key}"}}],"more":{more}}}"#);
    let torn = stream(&[("", "reset", &page("a", true))]);
    let whole =
        stream(&[("", "reset", &page("b", true)), ("", "heartbeat", ""), ("c-3.1", "reset", &page("c", false))]);
    let node = Node::start(vec![(torn, Then::Close), (whole, Then::Hang)]).await;
    let selection = Selection { prefix: Some("a b&".to_owned()), renewed: true, list: true, keys: Vec::new() };
    let mut watch = Watch::after(&client(&[&node.address]), selection, "c-1.0");
    let Notice::Reset { reason, keys: Some(keys), id } = next(&mut watch).await else { panic!() };
    let keys: Vec<_> = keys.iter().map(|key| key.key.as_str()).collect();
    assert_eq!((&*reason, keys, &*id), ("too_old", vec!["b", "c"], "c-3.1"));
    assert_eq!(node.resumed(), [Some("c-1.0".to_owned()), Some("c-1.0".to_owned())]);
    assert!(node.heads.lock().unwrap()[0].starts_with("GET /v1/watch?prefix=a%20b%26&renewed=true HTTP/1.1"));
}

#[tokio::test]
async fn what_passes_is_tried_again_and_what_does_not_is_an_error() {
    let old = Node::start(vec![(problem(404, "not_found"), Then::Close)]).await;
    let node = Node::start(vec![(problem(503, "unavailable"), Then::Close), (stream(&[START]), Then::Hang)]).await;
    let mut watch = Watch::new(&client(&[&old.address, &node.address]), Selection::of_key("k"));
    assert_eq!(next(&mut watch).await.id(), "c-5.0");

    let mut watch = Watch::new(&client(&[&old.address]), Selection::default());
    let refused = error(&mut watch).await;
    assert!(matches!(&refused, WatchError::Refused(problem) if problem.code == "not_found"), "{refused:?}");
    assert_eq!(error(&mut watch).await, refused, "it stays so");

    let node = Node::start(vec![(problem(400, "invalid_argument"), Then::Close)]).await;
    let mut watch = Watch::new(&client(&[&node.address, &old.address]), Selection::default());
    assert!(matches!(error(&mut watch).await, WatchError::Refused(_)));
    let mut watch = Watch::after(&client(&[&node.address]), Selection::default(), "line\nbreak");
    assert!(matches!(error(&mut watch).await, WatchError::Id(_)));
}

/// It would be asked for ever.
#[tokio::test]
async fn what_tells_no_events_is_an_error_where_nobody_else_does() {
    let other = Node::start(vec![("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi".to_owned(), Then::Close)]).await;
    let teapot = Node::start(vec![("HTTP/1.1 418 X\r\ncontent-length: 0\r\n\r\n".to_owned(), Then::Close)]).await;
    let mut watch = Watch::new(&client(&[&other.address, &teapot.address]), Selection::default());
    let unclear = error(&mut watch).await;
    assert!(matches!(&unclear, WatchError::Protocol { detail, .. } if detail.contains("418")), "{unclear:?}");
    let broken = ("HTTP/1.1 502 X\r\ncontent-length: 0\r\n\r\n".to_owned(), Then::Close);
    let proxy = Node::start(vec![broken, (stream(&[START]), Then::Hang)]).await;
    let mut watch = Watch::new(&client(&[&proxy.address]), Selection::default());
    assert_eq!(next(&mut watch).await.id(), "c-5.0", "a proxy's trouble passes");

    let keys = (0..100).map(|n| format!("{n:0>900}")).collect();
    let mut watch = Watch::new(&client(&[&other.address]), Selection { keys, ..Selection::default() });
    let refused = error(&mut watch).await;
    assert!(matches!(&refused, WatchError::Refused(problem) if problem.field.as_deref() == Some("key")), "{refused:?}");
}

#[tokio::test]
async fn a_watch_that_is_dropped_leaves_its_node() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut watch = Watch::new(&client(&[&address]), Selection::default());
    let (mut stream, _) = tokio::select! {
        accepted = listener.accept() => accepted.unwrap(),
        _ = watch.next() => panic!("nothing was told"),
    };
    stream.write_all(stream_head().as_bytes()).await.unwrap();
    drop(watch);
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "the connection is closed");
}

fn stream_head() -> String {
    stream(&[START])
}

#[test]
fn messages_are_taken_for_what_they_are() {
    let message = |id: &str, event: &str, data: &str| Message {
        id: Some(id.to_owned()).filter(|id| !id.is_empty()),
        event: event.to_owned(),
        data: data.to_owned(),
    };
    let mut pages = Pages::default();
    assert_eq!(pages.take(message("", "heartbeat", "")), Ok(Told::Nothing));
    assert_eq!(pages.take(message("c-1.0", "heartbeat", "{}")), Ok(Told::Alive("c-1.0".to_owned())));
    assert_eq!(pages.take(message("c-2.0", "of later", "?")), Ok(Told::Alive("c-2.0".to_owned())));
    assert_eq!(pages.take(message("", "cut", r#"{"reason":"too_slow"}"#)), Err(Wrong::Cut("too_slow".to_owned())));
    for (id, event, data) in [("", "granted", "{}"), ("c-1.0", "granted", "["), ("", "reset", "{}"), ("x", "reset", "")]
    {
        let wrong = pages.take(message(id, event, data));
        assert!(matches!(wrong, Err(Wrong::Unclear(_))), "{event} {data}: {wrong:?}");
    }
}
