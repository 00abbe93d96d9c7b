//! A durable node inside a program: a lease taken in process, seen over HTTP, and given back.
//!
//! `cargo run --release --example embedded`

use std::sync::Arc;

use tenure::config::NodeConfig;
use tenure::keyspace::{Acquire, Command, Reply, token_hash};
use tenure::node::Node;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let node = Node::start(NodeConfig::local(dir.path())).await?;
    let (address, cluster) = (node.address(), node.cluster().clone());
    let (stop, stopped) = oneshot::channel();
    let serving = tokio::spawn(node.run(async {
        let _ = stopped.await;
    }));

    // In process: a command through the log, and its answer.
    let key: Arc<str> = "nightly-backup".into();
    let token = token_hash(&key, "a fresh random secret of the holder");
    let applied = cluster
        .submit(Command::Acquire(Acquire {
            key: key.clone(),
            owner: "embedded".into(),
            token,
            ttl_ms: 30_000,
            create: true,
            note: None,
            min_hold_ms: None,
            delay_ms: None,
            once: true,
        }))
        .await?;
    let Reply::Op(acquired) = &applied.reply else { anyhow::bail!("unexpected: {:?}", applied.reply) };
    say(&format!("acquired: {}, fence {:?}, at {}", acquired.result, acquired.fence, applied.witness.position))?;

    // Over HTTP: the same lease, as any other process sees it.
    say(&post(address, "GET", r#"{"key":"nightly-backup"}"#).await?)?;

    let released = cluster.submit(Command::Release { key, token, fence: acquired.fence }).await?;
    say(&format!("released: {:?}", released.reply))?;

    let _ = stop.send(());
    serving.await??;
    Ok(())
}

async fn post(address: std::net::SocketAddr, command: &str, body: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "POST /v1/{command} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn say(text: &str) -> std::io::Result<()> {
    use std::io::Write;
    writeln!(std::io::stdout(), "{text}")
}
