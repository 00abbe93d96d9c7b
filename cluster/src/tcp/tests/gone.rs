//! Who is surely gone, and who only seems to be.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;
use tokio::time::Instant;

use super::proxy::{Fate, Proxy, Rule};
use super::*;

/// Set in the child process that is to be killed.
const CHILD: &str = "TENURE_TEST_PEER_CHILD";

async fn gone_is(gone: &mut watch::Receiver<BTreeSet<NodeId>>, wanted: &[NodeId]) {
    let wanted: BTreeSet<NodeId> = wanted.iter().copied().collect();
    if timeout(LIMIT, gone.wait_for(|gone| *gone == wanted)).await.is_err() {
        panic!("gone are {:?} and not {wanted:?}", gone.borrow());
    }
}

/// Not a test of its own: the peer that [`a_killed_process_is_gone_within_milliseconds`] starts, and kills.
#[tokio::test]
async fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let b = start(2, &Node::echo());
    println!("\nlistens {}", b.address());
    std::future::pending::<()>().await;
}

fn start_child() -> (Child, SocketAddr) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tcp::tests::gone::child", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = lines.find_map(|line| line.unwrap().strip_prefix("listens ").map(|rest| rest.parse().unwrap()));
    (child, address.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_is_gone_within_milliseconds() {
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        let (mut child, address) = start_child();
        let a = start(1, &Node::echo());
        let mut gone = a.transport().gone();
        a.transport().know(vec![at(2, address)]);
        connected(&a, 2).await;
        call(&a, 2, "x").await.unwrap();
        let held = a.transport().call(Peer { id: 2, ..Peer::default() }, forward("y"));
        held.await.unwrap();
        assert!(gone.borrow().is_empty());
        let before = Instant::now();
        child.kill().unwrap();
        gone_is(&mut gone, &[2]).await;
        fastest = fastest.min(before.elapsed());
        child.wait().unwrap();
        // It stays gone for as long as nobody is there; forgotten, it is not gone any more.
        trouble(&a, 2, "refused").await;
        a.transport().know(Vec::new());
        gone_is(&mut gone, &[]).await;
    }
    println!("a killed peer was noticed after {fastest:?} at best");
    // Its silence alone would tell after 3.5 s.
    assert!(fastest < Duration::from_secs(1), "{fastest:?}");
}

#[tokio::test]
async fn a_restarted_process_is_not_gone_any_more() {
    let (a, b) = pair(&Node::echo(), &Node::echo()).await;
    let (mut gone, address) = (a.transport().gone(), b.address());
    for _ in 0..3 {
        a.transport().know(vec![at(2, address)]);
        let again = TcpPeers::bind(address, secret());
        if let Ok(again) = again {
            again.introduce(hello(2));
            again.handle(Node::echo());
            connected(&a, 2).await;
            gone_is(&mut gone, &[]).await;
            again.close().await;
        } else {
            b.close().await;
        }
        gone_is(&mut gone, &[2]).await;
    }
}

#[tokio::test]
async fn whoever_was_never_there_is_not_gone() {
    let a = start(1, &Node::echo());
    let (_kept, nobody) = closed();
    a.transport().know(vec![at(2, nobody)]);
    trouble(&a, 2, "refused").await;
    assert!(a.transport().gone().borrow().is_empty());
}

/// Returns once a call is answered: on a loaded machine a hasty connection may be given up by itself.
async fn heard(a: &TcpPeers) {
    let heard = async {
        loop {
            connected(a, 2).await;
            if call(a, 2, "heard").await.is_ok() {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, heard).await.expect("no call is answered");
}

#[tokio::test]
async fn silence_is_not_gone() {
    let b = start_as(hello(2), &Node::echo(), hasty());
    let silent = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&silent);
    let rule: Rule = Arc::new(move |_, _, _| if told.load(Ordering::Relaxed) { Fate::Swallow } else { Fate::Pass });
    let proxy = Proxy::start(b.address(), rule).await;
    let a = start_as(hello(1), &Node::echo(), hasty());
    let gone = a.transport().gone();
    a.transport().know(vec![at(2, proxy.address)]);
    let unheard = async {
        loop {
            silent.store(false, Ordering::Relaxed);
            heard(&a).await;
            silent.store(true, Ordering::Relaxed);
            // Surely not sent: the connection was given up just before.
            if let TransportError::Broken { .. } = call(&a, 2, "unheard").await.unwrap_err() {
                return;
            }
        }
    };
    timeout(LIMIT, unheard).await.expect("no call breaks");
    // Found silent, then dialled again in vain: connected to, and not greeted.
    trouble(&a, 2, "no greeting").await;
    assert!(!gone.has_changed().unwrap(), "never gone: {:?}", gone.borrow());
    // And an idle connection that falls silent is given up too.
    silent.store(false, Ordering::Relaxed);
    connected(&a, 2).await;
    silent.store(true, Ordering::Relaxed);
    trouble(&a, 2, "").await;
    assert!(!gone.has_changed().unwrap(), "never gone: {:?}", gone.borrow());
}

#[tokio::test]
async fn a_connection_cut_on_the_way_is_not_gone() {
    let b = start(2, &Node::echo());
    let cut = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&cut);
    let rule: Rule = Arc::new(move |_, _, _| if told.load(Ordering::Relaxed) { Fate::Cut } else { Fate::Pass });
    let proxy = Proxy::start(b.address(), rule).await;
    let a = start(1, &Node::echo());
    let gone = a.transport().gone();
    a.transport().know(vec![at(2, proxy.address)]);
    connected(&a, 2).await;
    cut.store(true, Ordering::Relaxed);
    assert!(call(&a, 2, "cut").await.is_err());
    trouble(&a, 2, "no greeting").await;
    cut.store(false, Ordering::Relaxed);
    connected(&a, 2).await;
    assert!(!gone.has_changed().unwrap(), "never gone: {:?}", gone.borrow());
}

#[tokio::test]
async fn a_closed_connection_of_a_living_process_is_not_gone() {
    let (a, b) = pair(&Node::echo(), &Node::echo()).await;
    let gone = a.transport().gone();
    for incarnation in 2..5 {
        b.introduce(HelloV1 { incarnation, ..hello(2) });
        link(&a, 2, |state| state.connected && state.hello.as_ref().is_some_and(|h| h.incarnation == incarnation))
            .await;
    }
    assert!(!gone.has_changed().unwrap(), "never gone: {:?}", gone.borrow());
}

#[tokio::test]
async fn a_peer_that_moves_is_not_gone() {
    let (a, b) = pair(&Node::echo(), &Node::echo()).await;
    let mut gone = a.transport().gone();
    b.close().await;
    gone_is(&mut gone, &[2]).await;
    // That nobody is at the old address means nothing once it is expected elsewhere.
    let (_kept, nobody) = closed();
    a.transport().know(vec![at(2, nobody)]);
    gone_is(&mut gone, &[]).await;
}
